"""Metrics of a model in production: latency of every call, where the time of a few goes.

    watch = ft.watch(model)              # to prometheus_client's registry
    watch = ft.watch(model, exporter="opentelemetry")
    watch.stop()                         # or ``with``; ends with the model at the latest

In the thread that calls the model, a call costs two readings of the clock and an entry in a buffer
of that thread; one call in twenty is sampled. A thread of the watch's own reads buffers and rings
every few seconds and speaks to the exporter, in small portions, because a thread that holds the
interpreter's lock delays the model. So a fault of the exporter cannot reach a call; one of the
watch itself within a call is caught, counted (``Watch.faults``) and logged once.

The class of the model's object becomes a subclass that calls through: other objects of the class
are not touched, ``isinstance`` holds, a copy or a pickle is of the original class. Hooks would cost
ten times as much and would be compiled into the model by ``torch.compile``.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from frameworktax.attribution.perf_event import probe
from frameworktax.attribution.symbols import read_tables
from frameworktax.errors import UsageError
from frameworktax.integrations.exporters import EXPORTERS, Exporter
from frameworktax.integrations.watch_calls import (
    INTERVAL_S,
    MAX_BATCH,
    SAMPLE,
    Recorder,
    batch_size,
)


def watch(
    model: Any,
    *,
    name: str | None = None,
    calls: Sequence[str] = ("__call__",),
    batch: Callable[..., int | None] | None = None,
    max_batch: int = MAX_BATCH,
    sample: float = SAMPLE,
    interval_s: float = INTERVAL_S,
    exporter: str | Exporter = "prometheus",
) -> Watch:
    """Export latency and framework tax of every call of ``model`` from now on.

    Args:
        model: an object whose class is written in Python, such as a ``torch.nn.Module``; a compiled
            one as ``torch.compile`` returned it.
        name: value of the label ``model``; its class's name by default.
        calls: methods that are watched; of nested ones the outermost counts.
        batch: returns the batch size from the arguments of a call; by default the first dimension,
            or the length, of the first argument that has one.
        max_batch: larger batches share one label value; up to it there is one for each power of 2.
        sample: share of calls that are sampled; 0 for latency alone.
        interval_s: time between two exports.
        exporter: ``prometheus``, ``opentelemetry`` (with the global registry and meter provider),
            or an object with the methods of ``exporters.Exporter``.

    Raises:
        UsageError: the object cannot be watched, is watched already, or the exporter's package is
            not installed.
    """
    if not 0 <= sample <= 1 or interval_s <= 0 or max_batch < 1:
        raise UsageError("watch takes 0 <= sample <= 1, interval_s > 0 and max_batch >= 1")
    cls = type(model)
    if hasattr(cls, "_frameworktax_watched"):
        raise UsageError(f"this {cls.__name__} is watched already; stop that watch first")
    if isinstance(exporter, str):
        if exporter not in EXPORTERS:
            raise UsageError(f"no exporter '{exporter}'; choose {', '.join(EXPORTERS)}")
        exporter = EXPORTERS[exporter]()
    recorder = Recorder(
        cls.__name__ if name is None else name,
        exporter,
        size=batch_size if batch is None else lambda args, kwargs: batch(*args, **kwargs),
        max_batch=max_batch,
        sample=sample,
        interval_s=interval_s,
    )
    try:
        watched = _watched_class(cls, calls, recorder)
        reference = weakref.ref(model)
        model.__class__ = watched
    except TypeError as error:
        raise UsageError(
            f"{cls.__name__} cannot be watched; wrap it in a class with __call__, for example a "
            "torch.nn.Module"
        ) from error
    if sample and probe() is None:
        read_tables()  # takes a second: now, not in the first minute of serving
    ends = weakref.finalize(model, recorder.end)
    return Watch(reference, cls, watched, recorder, ends)


class Watch:
    """A model under watch; a context manager that ends with ``stop``."""

    def __init__(
        self,
        model: weakref.ref[Any],
        original: type,
        watched: type,
        recorder: Recorder,
        ends: Callable[[], Any],
    ) -> None:
        self._model, self._original, self._watched = model, original, watched
        self._recorder, self._ends = recorder, ends

    @property
    def faults(self) -> Mapping[str, int]:
        """Faults of the watch itself by stage: call, batch, sampler, ring, buffer, export."""
        return dict(self._recorder.faults)

    @property
    def reason(self) -> str | None:
        """Why there is no tax, None where there is or no call was made yet."""
        return self._recorder.reason

    def flush(self) -> None:
        """Export now what has been seen since the last time."""
        self._recorder.flush()

    def stop(self) -> None:
        """Export what is left, give back samplers and the thread, and leave the model as it was."""
        model = self._model()
        if model is not None and type(model) is self._watched:
            model.__class__ = self._original
        self._ends()
        self._recorder.join()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def _watched_class(cls: type, calls: Sequence[str], recorder: Recorder) -> type:
    """Return a subclass of ``cls`` with the same layout whose ``calls`` are recorded."""
    namespace: dict[str, Any] = {
        "__slots__": (),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "_frameworktax_watched": True,
    }
    for call in calls:
        method = getattr(cls, call, None)
        if not callable(method):
            raise UsageError(f"{cls.__name__} has no method {call}")
        if inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method):
            raise UsageError(f"{cls.__name__}.{call} returns before its work is done; watch the "
                             "method that does the work")  # fmt: skip
        namespace[call] = _recorded(method, call.strip("_"), recorder)

    reduce: Any = cls.__reduce_ex__

    def reduced(self: Any, protocol: Any) -> Any:
        parts = reduce(self, protocol)
        if isinstance(parts, str):
            return parts
        made = tuple(cls if part is watched else part for part in parts[1])
        # pickle refuses ``__newobj__`` for an object of another class; it calls the same.
        maker = cls.__new__ if parts[0].__name__ == "__newobj__" else parts[0]
        return (maker, made, *parts[2:])

    watched: type = type(cls)(cls.__name__, (cls,), namespace | {"__reduce_ex__": reduced})
    return watched


def _recorded(method: Callable[..., Any], call: str, recorder: Recorder) -> Callable[..., Any]:
    compiling = _compiling()

    @wraps(method)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling():  # a constant to torch.compile, which sees the method as it was
            return method(self, *args, **kwargs)
        state = recorder.enter(call, args, kwargs)
        try:
            result = method(self, *args, **kwargs)
        except BaseException:
            recorder.leave(state, failed=True)
            raise
        recorder.leave(state)
        return result

    return recorded


def _compiling() -> Callable[[], bool]:
    torch = sys.modules.get("torch")
    return torch.compiler.is_dynamo_compiling if torch is not None else lambda: False
