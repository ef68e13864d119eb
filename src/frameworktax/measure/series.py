"""A series: one model in one runtime over batch sizes, and the processes that measure it."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from frameworktax import host, models, runtimes
from frameworktax.errors import WorkerError
from frameworktax.host.cache import own_entry, private_file, remove
from frameworktax.measure.plan import Plan
from frameworktax.measure.process import Worker
from frameworktax.measure.protocol import Bound
from frameworktax.models.libraries import ASKS_FOR_DEVICES, libraries_in
from frameworktax.records import DEPLOYED, FLOOR, REFERENCE, By, Note, Point, Workload, device_of
from frameworktax.runtimes.base import Runtime, Target
from frameworktax.runtimes.deployment import configuration

READY = "ready.json"
"""Written last into a folder of prepared files: the folder is complete."""
VERSIONED = ("torchvision:", "timm:")
"""Prefixes of models that an installed package of a known version defines whole."""


@dataclass(eq=False)
class PointRun:
    """One point, warm in one process: what is timed.

    Attributes:
        calls: of a block.
        call_ns: of one call.
        bound: what warming it up took.
        medians: of the latencies of each block, ns.
        shares: of kernels in each sample on a CPU.
    """

    series: Series
    batch: int
    process: int
    calls: int
    call_ns: int
    bound: Bound | None = None
    notes: list[Note] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    is_samplable: bool = True
    profiled: bool = False
    placed: set[By] = field(default_factory=set)

    @property
    def point(self) -> Point:
        """The point."""
        return self.series.points[self.batch]

    @property
    def of_point(self) -> list[list[float]]:
        """Block medians of the point, ns, of each process that timed it, ended or not."""
        return [run.medians for run in self.series.timed_runs if run.batch == self.batch]

    @property
    def shares_of_point(self) -> list[list[float]]:
        """Kernel shares of the point's samples, of each process that timed it."""
        return [run.shares for run in self.series.timed_runs if run.batch == self.batch]

    @property
    def worker(self) -> Worker | None:
        """The process, None where it has ended, or is a new one in which the point is not warm."""
        is_warm = (self.batch, self.process) in self.series.bound
        return self.series.workers.get(self.process) if is_warm else None


@dataclass(eq=False)
class Series:
    """One (workload without its batch, runtime, platform).

    Attributes:
        points: by batch size.
        folder: of what is prepared.
        workload: at its smallest batch.
        is_eager: others are compared with it.
        is_floor: it does nothing: the harness's own cost.
        is_deployed: it is a deployment, which is measured without its model.
        is_twin: it is the width-shrunk twin of another series.
        timed: False for an eager series that only serves as the reference of parity.
        is_beside: True for the floor where it was not asked for.
        ready: whether process 0 has loaded the model, and is no longer the set-up's to ask.
        open: batch sizes that have not been measured, nor left out.
        workers: by number of the process.
        runs: what is timed, by batch size and process.
        bound: what is warm in a process that lives, timed or not yet, likewise.
        failed: batch sizes that cannot be called.
        call_ns: of one call, by batch size.
        begun_ns: when process 0 was started, on the monotonic clock.
        load_ns: by process.
        dead: status and reason once nothing more can come from it.
    """

    runtime: Runtime
    points: dict[int, Point]
    folder: Path
    timed: bool = True
    live: str | None = None
    is_beside: bool = False
    ready: bool = False
    open: set[int] = field(init=False)
    workers: dict[int, Worker] = field(default_factory=dict)
    runs: dict[tuple[int, int], PointRun] = field(default_factory=dict)
    bound: dict[tuple[int, int], PointRun] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    call_ns: dict[int, int] = field(default_factory=dict)
    begun_ns: int = 0
    load_ns: dict[int, int] = field(default_factory=dict)
    setup_ns: int | None = None
    artifact_bytes: int | None = None
    notes: list[Note] = field(default_factory=list)
    dead: WorkerError | None = None

    def __post_init__(self) -> None:
        self.open = set(self.points)
        name = self.runtime.name
        self.is_eager, self.is_floor = name == REFERENCE, name == FLOOR
        self.is_deployed = name == DEPLOYED
        self.workload = self.points[min(self.points)].workload
        self.is_twin = self.workload.twin

    @property
    def target(self) -> Target:
        """Device, precision and threads."""
        point = self.points[min(self.points)]
        return Target(device_of(point.platform), point.workload.precision, point.threads)

    @property
    def config(self) -> Workload:
        """The workload without its batch: what is compared with one another shares it."""
        return self.workload.without_batch()

    @property
    def reference(self) -> Workload:
        """What eager runs for its outputs to be compared with: int8 is compared with float32."""
        precision = "float32" if self.config.precision == "int8" else self.config.precision
        return replace(self.config, precision=precision)

    def reference_point(self, batch: int) -> Point:
        """Return the point of eager whose outputs those of this batch are compared with."""
        workload = replace(self.reference, batch=batch)
        return replace(self.points[batch], runtime=REFERENCE, workload=workload)

    @property
    def is_compared(self) -> bool:
        """Whether it computes the model itself: no twin, and not the floor."""
        return not (self.is_twin or self.is_floor)

    @property
    def libraries(self) -> tuple[str, ...]:
        """What its processes import before they load anything; see ``models.libraries``."""
        of_model = self.model_libraries if self.runtime.needs_model else ()
        left = ASKS_FOR_DEVICES if self.target.is_cuda else ()
        return libraries_in({*of_model, *self.runtime.imports}.difference(left))

    @property
    def model_libraries(self) -> tuple[str, ...]:
        """What building its model imports; a live module names none but torch."""
        return ("torch",) if self.live is not None else models.libraries(self.workload)

    @property
    def is_usable(self) -> bool:
        """Whether it can be bound and timed now."""
        return self.ready and self.dead is None

    @property
    def measured(self) -> list[int]:
        """The batch sizes that have a value, in order."""
        return sorted({run.batch for run in self.timed_runs})

    @property
    def timed_runs(self) -> list[PointRun]:
        """Those of ``runs`` that have a block."""
        runs = list(self.runs.values())  # other threads add to them
        return [run for run in runs if run.medians]

    def processes(self, wanted: int) -> int:
        """How many processes measure it: a twin, a bare reference and the floor need only one."""
        return wanted if self.timed and self.is_compared else 1

    @property
    def made_of(self) -> dict[str, Any]:
        """What ``Server.load`` and ``Server.prepare`` are given."""
        return {
            "workload": self.workload,
            "runtime": self.runtime.name,
            "target": self.target,
            "folder": str(self.folder),
            "live": self.live,
        }

    @property
    def is_to_be_prepared(self) -> bool:
        """Whether no earlier session left ready what it needs."""
        return self.runtime.prepares and _left_ready(self.folder) is None

    def is_ready(self) -> bool:
        """Take over what an earlier session's set-up took and left; False where it left none."""
        known = _left_ready(self.folder)
        if known is None:
            return False
        (self.folder / READY).touch()  # pruning takes what was not used for longest
        self.setup_ns, self.artifact_bytes = known.setup_ns, sum(known.sizes.values())
        text = "what an earlier session prepared was used again; set-up time and size are from then"
        self.add(Note("set-up-reused", text))
        return True

    def mark_ready(self, setup_ns: int) -> None:
        """Write down what set-up took and left, for this session and later ones."""
        files = (f for f in self.folder.rglob("*") if f.is_file() and f != self.folder / READY)
        sizes = {str(file.relative_to(self.folder)): file.stat().st_size for file in files}
        self.setup_ns, self.artifact_bytes = setup_ns, sum(sizes.values())
        with private_file(self.folder / READY) as partial:
            partial.write_bytes(msgspec.json.encode(_LeftReady(setup_ns=setup_ns, sizes=sizes)))

    def add(self, *notes: Note) -> None:
        """Add notes, once each."""
        self.notes += [note for note in notes if note not in self.notes]

    def stop(self) -> None:
        """End its processes; what was measured stays."""
        for worker in self.workers.values():
            worker.kill()
        self.workers.clear()
        self.bound.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeftReady:
    """What set-up took, ns, and the size of each file that it left, bytes, by its path."""

    setup_ns: int
    sizes: Mapping[str, int]


def _left_ready(folder: Path) -> _LeftReady | None:
    """Return what an earlier session left ready; None where that is missing, or no longer whole.

    A full disk or a host that went down may have cut any file short.
    """
    try:
        known = msgspec.json.decode((folder / READY).read_bytes(), type=_LeftReady)
        sizes = {name: (folder / name).stat().st_size for name in known.sizes}
    except (OSError, msgspec.DecodeError):
        return None
    return known if sizes == known.sizes else None


def _whole_entry(entry: Path) -> Path:
    """Return the path of an entry of the cache; what is damaged there is removed.

    Raises:
        UsageError: it cannot be removed.
    """
    if (own_entry(entry) / READY).exists() and _left_ready(entry) is None:
        remove(entry)
    return entry


def series_of(
    points: Iterable[Point], plan: Plan, scratch: Path, *, timed: bool = True
) -> list[Series]:
    """Group points into series, in the order they are given.

    What is prepared stays in the plan's folder for later sessions, but not what comes from the
    user's own code or files, which change between sessions: that lies in ``scratch``. ``timed`` is
    False for references.
    """
    groups: dict[str, dict[int, Point]] = {}
    for point in points:
        groups.setdefault(point.without_batch().key(), {})[point.workload.batch] = point
    found, made_with = [], host.libraries(runtimes.distributions())
    for group in groups.values():
        point = next(iter(group.values()))
        runtime = runtimes.get(point.runtime)
        makes = runtime.prepares or runtime.compiles
        kept = makes and plan.live is None and is_fixed(point)
        key = artifact_key(point, sorted(group), made_with)
        folder = _whole_entry(plan.folder / key) if kept else scratch / key
        if plan.deployment is not None and point.runtime == DEPLOYED:
            folder = plan.deployment / configuration(point.workload.length)
        found.append(Series(runtime, group, folder, timed=timed, live=plan.live))
    return found


def is_fixed(point: Point) -> bool:
    """Return whether a point's names and the installed versions define all of what is run.

    They do for models and runtimes of this package, and for torchvision's and timm's models. They
    do not for files, the user's own code, models on a hub, and what other packages register.
    """
    model, runtime = point.workload.model, point.runtime.partition("@")[0]
    by_version = model in models.BUILT_IN or model.startswith(VERSIONED)
    return by_version and runtime in runtimes.BUILT_IN


def artifact_key(point: Point, batches: list[int], libraries: Mapping[str, str]) -> str:
    """Return the name of the folder for prepared files: equal content, equal name."""
    content = {
        "point": point.without_batch().key(),
        "batches": batches,
        "code": _own_code(),
        # Another exporter exports something else; compiled code is for one kind of processor.
        "libraries": dict(libraries),
        "python": platform.python_version(),
        "cpu": host.cpu_model(),
        "gpus": [] if point.platform == "cpu" else _cards(),
    }
    digest = hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()
    return f"{point.runtime}-{digest}"


_gpus = functools.cache(host.gpus)


def _cards() -> list[str]:
    """Return the host's GPUs; of several kinds also which of them this process is shown."""
    found = host.cards(_gpus())
    shown = [os.environ.get(host.VISIBLE, "")] if len(set(found)) > 1 else []
    return found + shown


@functools.cache
def _own_code() -> str:
    """Return a digest of what builds and exports here: it changes without its version, too."""
    digest = hashlib.blake2b(digest_size=8)
    for package in (models, runtimes):
        for path in sorted(Path(package.__path__[0]).rglob("*")):
            if path.suffix in (".py", ".toml"):
                digest.update(path.read_bytes())
    return digest.hexdigest()
