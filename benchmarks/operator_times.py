"""What each kind of operator takes: every one that a call makes, alone in a loop, no profiler.

A profiler costs half a microsecond a record, as much as a small operator does. So the operators
that Python calls are caught once, with their arguments, and timed one after the other; what the
call takes beyond their sum is what stands between them: the interpreter, the model's own code, and
caches that are warmer in a loop. Of a width-shrunk twin the result is the warm overhead by
operator, for its kernels do next to nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

AROUND = "between operators"
ATTRIBUTES = "attributes"
"""Shapes, types and devices read from a tensor."""
LOOP_NS = 200_000
"""An operator is repeated for about so long, once a round."""
MOST = 1000
WARM_CALLS = 10

Run = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """A call by kind of operator; times in ns a call, adding up to ``latency_ns``.

    Attributes:
        latency_ns: of the call.
        calls: operator → calls.
        time_ns: operator → time of all its calls, ``AROUND`` included, which may be negative
            where caches or kernels do worse alone than in the call.
    """

    latency_ns: float
    calls: Mapping[str, int]
    time_ns: Mapping[str, float]


def itemise(names: Sequence[str], times_ns: Sequence[float], latency_ns: float) -> Operators:
    """Return what each kind of operator takes.

    Args:
        names: of the operators in the order of the call.
        times_ns: of each.
        latency_ns: of the call.

    Raises:
        ValueError: no operators.
    """
    if not names:
        raise ValueError("the call makes no operator")
    total: dict[str, float] = {}
    for name, ns in zip(names, times_ns, strict=True):
        total[name] = total.get(name, 0.0) + ns
    return Operators(
        latency_ns=latency_ns,
        calls=dict(Counter(names)),
        time_ns={**total, AROUND: latency_ns - sum(total.values())},
    )


def measure(call: Run, *, rounds: int = 9, clock: Callable[[], int] = time.perf_counter_ns) -> Any:
    """Return ``Operators`` of a call of a torch module on the CPU.

    Args:
        call: without arguments; gradients as they are on this thread.
        rounds: how often everything is timed; medians are taken.
        clock: to be replaced in tests.

    Raises:
        ValueError: the call makes no operator.
    """
    for _ in range(WARM_CALLS):
        call()
    names, runs = caught(call)
    loops = [max(1, min(MOST, LOOP_NS // max(1, _per_call(run, 3, clock)))) for run in runs]
    whole: list[int] = []
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for own, run, loop in zip(times, runs, loops, strict=True):
            own.append(_per_call(run, loop, clock))
        for _ in range(WARM_CALLS):
            begin = clock()
            call()
            whole.append(clock() - begin)
    return itemise(names, [median(own) for own in times], median(whole))


def _per_call(run: Run, loop: int, clock: Callable[[], int]) -> int:
    begin = clock()
    for _ in range(loop):
        run()
    return (clock() - begin) // loop


def caught(call: Run) -> tuple[list[str], list[Run]]:
    """Run a call once and return the operators that Python makes in it: names, and what runs each.

    They hold the call's intermediate results. One that works in place works on its own result when
    it runs again, which takes the same time.
    """
    from torch.overrides import TorchFunctionMode, resolve_name

    names: list[str] = []
    runs: list[Run] = []

    class Catching(TorchFunctionMode):  # type: ignore[misc] # torch is untyped to mypy here
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            given = kwargs or {}
            names.append(_name(resolve_name(func) or getattr(func, "__name__", str(func))))
            runs.append(lambda: func(*args, **given))
            return func(*args, **given)

    with Catching():
        call()
    return names, runs


def _name(full: str) -> str:
    """Return ``linear`` for ``torch.nn.functional.linear``."""
    if full.endswith((".__get__", ".size", ".dim", ".is_floating_point")):
        return ATTRIBUTES
    return full.rpartition(".")[2].strip("_")
