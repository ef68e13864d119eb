"""Measuring from Python, with the words of the command line.

This is the one place where the two wings meet: a plan goes down the measuring wing into a store,
and the store's records come up the reading wing as a document.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax import host, store
from frameworktax.analysis.document import build
from frameworktax.analysis.grouping import gather
from frameworktax.errors import NothingMeasuredError, UsageError, as_path, check_suffix, needs
from frameworktax.host.lock import host_lock
from frameworktax.measure.plan import (
    DEFAULT_BUDGET_S,
    DEFAULT_PRECISE_S,
    DEFAULT_SETUP_LIMIT_S,
    Plan,
    check_flags,
    checked,
    listed,
    points_for,
    process_counts,
    refuse_crowd,
)
from frameworktax.measure.recorder import open_shard, without_end
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.session import MeasuringSession
from frameworktax.models.user import unpack
from frameworktax.records import FLOOR, LeftOut, Measurement, Note, Point, Record, Run, Workload
from frameworktax.stats import UNTIL

if TYPE_CHECKING:
    import pandas as pd

    from frameworktax.measure.template import Templates

DEFAULT_STORE = Path("frameworktax-results")
DEFAULT_BATCHES = (1, 2, 4, 8, 16, 32, 64)
INTERRUPTED = "interrupted before it was measured"


class Results(Sequence[Measurement]):
    """The measurements of a session; ``run`` is the whole document, ``store`` where it is kept."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run = run
        self.store = folder

    def __len__(self) -> int:
        return len(self.run.measurements)

    def __getitem__(self, index: Any) -> Any:
        return self.run.measurements[index]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row a point, times in ns, intervals as ``_low`` and ``_high`` columns.

        Raises:
            UsageError: pandas is not installed.
        """
        with needs("to_pandas needs pandas", "pandas"):
            import pandas as pd
        from frameworktax.report.rows import csv_row

        return pd.DataFrame([csv_row(m) for m in self])

    def to_mlflow(self, experiment: str | None = None) -> str:
        """Log the whole and each point to MLflow; see ``integrations.trackers.to_mlflow``."""
        from frameworktax.integrations.trackers import to_mlflow

        return to_mlflow(self.run, experiment=experiment)

    def to_wandb(self, project: str | None = None) -> str:
        """Log the whole and each point to Weights & Biases; see ``integrations.trackers``."""
        from frameworktax.integrations.trackers import to_wandb

        return to_wandb(self.run, project=project)

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``--json`` as plain data."""
        from frameworktax.report.json_document import dump

        return dump(self.run)

    def report(self, path: str | Path) -> Path:
        """Write a report in the format that the suffix names, and return its path.

        Raises:
            UsageError: no such format, or the file cannot be written.
        """
        from frameworktax.report.export import SUFFIXES, write

        check_suffix(Path(path), SUFFIXES)
        write(self.run, Path(path))
        return Path(path)

    @property
    def any_measured(self) -> bool:
        """Whether any point but the floor has a block: a value, if no interval."""
        return any(m.blocks_ns for m in self if m.runtime != FLOOR)

    def __repr__(self) -> str:
        return f"<frameworktax results: {len(self)} points; {self.run.headline}>"

    def _repr_html_(self) -> str:
        from frameworktax.report.html import fragment

        return fragment(self.run)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a session; ``results`` has what was measured until then.

    ``left`` are the points that ``resume`` would measure.
    """

    def __init__(self, results: Results, left: Sequence[Point] = ()) -> None:
        super().__init__()
        self.results, self.left = results, left


def measure(
    model: Any,
    inputs: Any = None,
    *,
    runtimes: str | Iterable[str] = "all",
    batch: int | Iterable[int] | None = None,
    length: int | None = None,
    image_size: int | None = None,
    width: float = 1.0,
    depth: float = 1.0,
    batch_dim: int | None = None,
    input: str = "dense",
    length_mean: float | None = None,
    length_sd: float | None = None,
    phase: str = "forward",
    new_tokens: int | None = None,
    kv_cache: str | None = None,
    channels_last: bool = False,
    trust_remote_code: bool = False,
    precision: str | Iterable[str] = "float32",
    device: str = "auto",
    threads: int = 1,
    force_threads: bool = False,
    time_budget: float | None = None,
    setup_limit: float = DEFAULT_SETUP_LIMIT_S,
    until: float = UNTIL,
    processes: int | None = None,
    twin: str = "auto",
    by: str = "auto",
    store: str | Path = DEFAULT_STORE,
    resume: bool = False,
    reporter: Reporter | None = None,
    command: Sequence[str] | None = None,
) -> Results:
    """Measure a model in several runtimes and itemise its framework tax.

    Args:
        model: a name (see ``frameworktax list models``), ``file.py:function``,
            ``package.module:function``, or a live ``torch.nn.Module``; of a ``transformers``
            pipeline or a ``SentenceTransformer`` the model in it.
        inputs: example inputs of a live module: a tensor, tuple, list or dict of tensors; of a
            pipeline or sentence encoder what it is called with, a list of them for a batch.
        runtimes: names, or ``all``.
        batch: one or several batch sizes; powers of two from 1 to 64 if left out.
        length: tokens per sample, for sequence models; samples of sound, for speech models.
        image_size: pixels a side, for image models.
        width: factor on layer widths.
        depth: factor on the number of layers.
        batch_dim: which dimension of a user's inputs is the batch, where it is not clear.
        input: dense, or ragged: sentences of drawn lengths, padded to ``length``.
        length_mean: mean of the drawn lengths, tokens; 20.92 if left out.
        length_sd: their standard deviation; 10.18 if left out.
        phase: forward, or generate: greedy decoding, for decoders.
        new_tokens: tokens to generate; 16 if left out.
        kv_cache: none, dynamic or static; dynamic if left out.
        channels_last: images and weights in that memory format.
        trust_remote_code: whether a hub model's own code may run.
        precision: float32, float16, bfloat16, int8, or several.
        device: auto, cpu or cuda:N.
        threads: of the calling process on a CPU.
        force_threads: measure with more threads than processors, too.
        time_budget: seconds of wall time for measuring; set-up is not in it. By default 12, and
            60 where all points in all processes take longer than that.
        setup_limit: seconds that each step of set-up may take: an export, a compilation.
        until: half-width of the interval, as a share, at which a point is done.
        processes: fresh processes a point; by default 3, and up to 12 where the spread between
            them makes an interval wide and there is time.
        twin: auto, all or none: for which runtimes the width-shrunk twin is measured as well.
        by: module, operator or line: which of them pay; auto takes modules where that takes under
            1 s, none leaves it out.
        store: folder that keeps every sample.
        resume: leave out points that the store already has.
        reporter: shows progress; silent by default.
        command: recorded with the session.

    Returns:
        The results; everything measured is in the store as well.

    Raises:
        UsageError: what was asked for cannot be.
        NothingMeasuredError: no point could be measured.
        Interrupted: by Ctrl-C; ``results`` of it has what was measured until then.
    """
    folder = as_path("store", store)
    check_flags(resume=resume, force_threads=force_threads)
    live = unpack(model, inputs)
    workload = Workload(
        model=str(model) if live is None else live.name,
        length=length,
        image_size=image_size,
        width=width,
        depth=depth,
        batch_dim=batch_dim,
        input=input,
        length_mean=length_mean,
        length_sd=length_sd,
        phase=phase,
        new_tokens=new_tokens,
        kv_cache=kv_cache,
        channels_last=channels_last,
        trust_remote_code=trust_remote_code,
    )
    points = points_for(
        workload,
        batches=DEFAULT_BATCHES if batch is None else listed(batch),
        runtimes=listed(runtimes),
        precisions=listed(precision),
        device=pick_device(str(device)),
        threads=threads,
    )
    plan = Plan(
        points=points,
        **process_counts(processes),
        until=until,
        budget_s=DEFAULT_BUDGET_S if time_budget is None else time_budget,
        precise_s=DEFAULT_PRECISE_S if time_budget is None else math.inf,
        setup_limit_s=setup_limit,
        twin=twin,
        by=by,
        force_threads=force_threads,
    )
    plan = checked(plan, live)
    return run_plan(plan, folder, resume=resume, reporter=reporter, command=command or sys.argv)


def run_plan(
    plan: Plan,
    folder: Path,
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
    command: Sequence[str] = (),
    templates: Templates | None = None,
) -> Results:
    """Measure a plan into a store; see ``measure``. ``templates`` serve further sessions.

    Raises:
        Interrupted: by Ctrl-C; the points that were not reached are left out in the store.
        NothingMeasuredError: no point could be measured; its results say why.
    """
    with contextlib.ExitStack() as ends:
        if plan.live is not None:  # a session that begins takes it away
            ends.callback(Path(plan.live).unlink, missing_ok=True)
        earlier: list[Record] = []
        damage: list[Note] = []
        asked = plan.points
        if resume and any(folder.glob("*.jsonl")):
            earlier, damage = store.read(folder)
            plan = replace(plan, points=_left(asked, earlier))
        if not plan.points:
            return _results(build(earlier, until=plan.until, asked=asked), damage, folder)
        refuse_crowd(plan.points, forced=plan.force_threads)
        ended: NothingMeasuredError | KeyboardInterrupt | None = None
        with open_shard(folder, command) as writer:
            try:
                with host_lock(command, reporter.say if reporter else None):
                    MeasuringSession(plan, writer, reporter, templates).run()
            except NothingMeasuredError as error:
                ended = error
            except KeyboardInterrupt as error:
                ended = error
                for point in without_end(writer.path, plan.points):
                    writer.write(LeftOut(session=writer.session, point=point, reason=INTERRUPTED))
        records, notes = store.read(writer.path)
        run = build(earlier + records, until=plan.until, asked=asked)
        results = _results(run, damage + notes, folder)
        if isinstance(ended, KeyboardInterrupt):
            raise Interrupted(results, _left(asked, earlier + records))
        if ended is not None and not results.any_measured:  # nor by an earlier session
            raise NothingMeasuredError(str(ended), results) from ended
        return results


def _left(asked: Iterable[Point], records: Iterable[Record]) -> tuple[Point, ...]:
    """Return the points that records do not have whole."""
    known = gather(records)[0]
    timed = {one.point for one in known if one.latency is not None and not one.cut_off}
    return tuple(point for point in asked if point not in timed)


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Leave Python's garbage collector off: it takes a third of the time of a large table."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read_store(folder: Path, where: store.Where | None = None) -> Results:
    """Return the results in a store or one of its shards, without measuring.

    Points that ``where`` does not name are not parsed.

    Raises:
        StoreError: there is no store, or another version wrote it.
    """
    with no_collection():
        records, notes = store.read_columns(folder, where)
        return _results(build(records), notes, folder)


def _results(run: Run, damage: Iterable[Note], folder: Path) -> Results:
    """Return the results in a store, with the notes on what could not be read of it."""
    return Results(replace(run, notes=(*run.notes, *damage)), folder)


def pick_device(device: str) -> str:
    """Return ``cpu`` or ``cuda:N`` for what was asked, without importing torch.

    Raises:
        UsageError: no such kind of device.
    """
    if device == "auto":
        from frameworktax.runtimes.cuda_graph import missing_gpu

        has_torch = importlib.util.find_spec("torch") is not None
        return "cuda:0" if has_torch and missing_gpu() is None else "cpu"
    if device == "cpu":
        return device
    kind, _, number = device.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        raise UsageError(f"no device '{device}'; choose auto, cpu or cuda:N")
    if not host.gpu_makers():
        raise UsageError(f"--device {device}: no GPU on this machine; choose --device cpu")
    return f"cuda:{int(number or 0)}"  # one name for a device, as points are kept by it
