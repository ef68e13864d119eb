"""What a session is to measure: points, how well, and in what time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, cast, get_args

from frameworktax import host, models
from frameworktax import runtimes as registry
from frameworktax.attribution import call_stacks, probe
from frameworktax.errors import UsageError, UserModelError, check_known, counted, one_line
from frameworktax.models import ragged
from frameworktax.models.finalize import check_positions
from frameworktax.models.user import Live, send
from frameworktax.records import (
    BY,
    FLOOR,
    INPUTS,
    KV_CACHES,
    PHASES,
    PRECISIONS,
    Point,
    Workload,
    device_of,
)
from frameworktax.runtimes.base import Target
from frameworktax.stats import FURTHER_PROCESSES, UNTIL
from frameworktax.store import new_session_id
from frameworktax.store.shards import decode

DEFAULT_BUDGET_S = 60.0
DEFAULT_PRECISE_S = 12.0
"""What measuring takes where no time budget was given, unless coverage takes longer."""
EXPECTED_SETUP_S = 8.0
"""What set-up is expected to take, until more is known: importing torch, loading, an export."""
DEFAULT_SETUP_LIMIT_S = 300.0
DEFAULT_PROCESSES = 3
MOST_PROCESSES = 100
Twin = Literal["auto", "all", "none"]
"""For which runtimes the width-shrunk twin is measured, see ``Plan``."""
LARGEST = 2**31 - 1
"""Largest size of a dimension that every runtime counts."""
NEW_TOKENS = 16
KV_CACHE = "dynamic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One session.

    Attributes:
        points: what to measure, in the order it is shown.
        processes: fresh processes a point; below three an interval lacks the spread between them.
        most_processes: up to so many where only more of them narrow an interval; 0 for no more.
        until: half-width of the 95 % interval, as a share of the value, at which a point is done.
        budget_s: wall time of measuring: warm-up, blocks, samples, device profiles. Set-up
            (imports, exports, compilation, loading) is not in it.
        precise_s: of the budget, after how much no more rounds are made for precision.
        setup_limit_s: time limit of each step of set-up.
        budget_option: what a user gives more of, for messages.
        setup_option: the same for the limit of a step.
        twin: ``auto`` where no sampler separates kernels from the rest, ``all``, ``none``.
        by: what breakdowns are broken down by: one of ``records.BY``, ``auto`` for modules where
            that takes little, ``none``.
        folder: where exports, compiled code and temporary files go: this user's cache, and never a
            store, because what lies here is run.
        force_threads: measure with more threads than there are processors, too.
        live: file holding a live module sent from Python; None otherwise.
        deployment: folder that the runtime ``deployed`` is loaded from.

    Raises:
        UsageError: a number that is not above zero, or an unknown kind of twin.
    """

    points: tuple[Point, ...]
    folder: Path = field(default_factory=host.cache_folder)
    processes: int = DEFAULT_PROCESSES
    most_processes: int = 0
    until: float = UNTIL
    budget_s: float = DEFAULT_BUDGET_S
    precise_s: float = math.inf
    setup_limit_s: float = DEFAULT_SETUP_LIMIT_S
    budget_option: str = "--time-budget"
    setup_option: str = "--setup-limit"
    twin: str = "auto"
    by: str = "none"
    force_threads: bool = False
    live: str | None = None
    deployment: Path | None = None

    def __post_init__(self) -> None:
        whole = self.processes, *(point.threads for point in self.points)
        check_numbers(whole, (self.until, self.budget_s, self.setup_limit_s))
        if self.until >= 1:
            text = f"until {self.until:g} is no share; give"
            raise UsageError(f"{text} {self.until / 100:g} for {self.until:g} %")
        if self.processes > MOST_PROCESSES:
            raise UsageError(
                f"{self.processes} processes are too many; give {MOST_PROCESSES} or fewer"
            )
        check_known("twin mode", self.twin, get_args(Twin))
        check_known("--by", self.by, (*BY, "auto", "none"))

    @property
    def warm_up_s(self) -> float:
        """How long one batch size may take to settle in one process."""
        return min(10.0, max(2.0, self.budget_s / 6))


class ProcessCounts(TypedDict):
    """Attributes of a ``Plan``."""

    processes: int
    most_processes: int


def process_counts(given: int | None) -> ProcessCounts:
    """Return in how many processes to measure: as many as given, else more where few differ."""
    if given is not None:
        return {"processes": given, "most_processes": 0}
    return {"processes": DEFAULT_PROCESSES, "most_processes": FURTHER_PROCESSES}


def check_flags(**given: Any) -> None:
    """Raise UsageError for a flag that is neither True nor False: "no" would be true."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise UsageError(f"{name} is {value!r}; give True or False")


def check_numbers(whole: Iterable[int], numbers: Iterable[float]) -> None:
    """Raise UsageError if one of a plan's numbers is none, or cannot be."""
    is_whole = all(type(number) is int for number in whole)
    every = *whole, *numbers
    if not is_whole or not all(type(n) in (int, float) and 0 < n < math.inf for n in every):
        raise UsageError(
            "processes and threads must be whole numbers, time budget and set-up limit (seconds) "
            "and until (a fraction) numbers, all above zero, and finite"
        )


def listed(given: Any) -> list[Any]:
    """Return one value, or several, as a list; a text is one."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def check_sizes(option: str, sizes: Iterable[int]) -> None:
    """Raise UsageError if a size is no whole number, or below 1."""
    for size in sizes:
        if type(size) is not int or size < 1:
            raise UsageError(
                f"{option} {size!r} cannot be; give whole numbers of 1 or more, as in "
                "--batch 1,2,4 or batch=[1, 2, 4]"
            )


def of_kinds(workload: Workload) -> Workload:
    """Return a workload whose fields are of the kinds that they are declared to be.

    Raises:
        UsageError: one is not.
    """
    try:
        return cast(Workload, decode(Workload, asdict(workload)))
    except TypeError as error:
        said = str(error).replace(" - at `$.", " for `")
        raise UsageError(f"{said}; give sizes and factors as numbers: length=128") from error


def completed(workload: Workload) -> Workload:
    """Return a workload with what its input and its phase need written out.

    Ragged input gets the moments of the Penn Treebank's sentences and the model's own length to
    pad to; generating makes 16 tokens with a dynamic cache.

    Raises:
        UsageError: an unknown word, or an option of another input or phase.
    """
    for option, word, known in (
        ("--input", workload.input, INPUTS),
        ("--phase", workload.phase, PHASES),
        ("--kv-cache", workload.kv_cache, KV_CACHES),
    ):
        if word is not None:
            check_known(option, word, known)
    if workload.phase == "generate":
        workload = _generating(workload)
    elif workload.new_tokens is not None or workload.kv_cache is not None:
        raise UsageError("--new-tokens and --kv-cache are for --phase generate; add it")
    if workload.input == "ragged":
        return _padded(workload)
    if workload.length_mean is not None or workload.length_sd is not None:
        raise UsageError("lengths are drawn for --input ragged only; add it")
    return workload


def _generating(workload: Workload) -> Workload:
    if workload.input != "dense":
        raise UsageError("prompts to generate from are dense; leave out --input ragged")
    tokens = NEW_TOKENS if workload.new_tokens is None else workload.new_tokens
    if tokens < 1:
        raise UsageError(f"--new-tokens {tokens} cannot be; give 1 or more")
    known = models.describe_name(workload.model)
    if known and (prompt := workload.length or known.default_length):
        check_positions(workload.model, prompt, tokens, known.max_length)
    return replace(workload, new_tokens=tokens, kv_cache=workload.kv_cache or KV_CACHE)


def _padded(workload: Workload) -> Workload:
    mean, sd = ragged.moments(workload)
    known = models.describe_name(workload.model)
    length = workload.length or (known.default_length if known else None)
    if length is not None:
        ragged.check(mean, sd, length)
    return replace(workload, length=length, length_mean=mean, length_sd=sd)


def points_for(
    workload: Workload,
    *,
    batches: Iterable[int],
    runtimes: Iterable[str],
    precisions: Iterable[str] = ("float32",),
    device: str = "cpu",
    threads: int = 1,
) -> tuple[Point, ...]:
    """Return the grid batch × runtime × precision over one workload.

    Raises:
        UsageError: a size that cannot be, an unknown runtime or precision, an empty axis.
    """
    workload = completed(of_kinds(workload))
    batch_list, precision_list = list(batches), list(precisions)
    runtime_list = _runtimes(runtimes, workload.input)
    axes = ("batch", batch_list), ("runtimes", runtime_list), ("precision", precision_list)
    for name, axis in axes:
        if not axis:
            raise UsageError(f"--{name} is empty; name at least one")
    for precision in precision_list:
        check_known("precision", precision, PRECISIONS)
    check_sizes("batch", batch_list)
    for option, size in (
        ("--batch", max(batch_list)),
        ("--length", workload.length),
        ("--image-size", workload.image_size),
        ("--new-tokens", workload.new_tokens),
    ):
        if size is not None and size > LARGEST:
            raise UsageError(f"{option} is too large; give {LARGEST} at most")
    return tuple(
        Point(
            workload=replace(workload, batch=batch, precision=precision),
            runtime=runtime,
            platform=device,
            threads=threads,
        )
        for precision in dict.fromkeys(precision_list)
        for runtime in runtime_list
        for batch in sorted(set(batch_list))
    )


def _runtimes(names: Iterable[str], input_kind: str) -> list[str]:
    """Return runtime names once each, ``all`` written out."""
    found: list[str] = []
    for name in map(str, names):
        found += registry.every(input_kind) if name == "all" else [registry.get(name).name]
    return list(dict.fromkeys(found))


def checked(plan: Plan, live: Live | None = None) -> Plan:
    """Return a plan of one model that can run here, its live module sent to a file.

    Raises:
        UsageError: what was asked for cannot be, or none of it can run here.
    """
    workload = plan.points[0].workload
    if live is None:
        models.check(workload)
    else:
        models.refuse(workload, models.USER)
    refuse_unavailable(plan.points)
    if plan.by in BY:
        refuse_places(plan.points, plan.by)
    return plan if live is None else with_live(plan, live)


def refuse_crowd(points: Iterable[Point], *, forced: bool) -> None:
    """Raise UsageError for more threads than there are processors here, unless that is forced."""
    usable = len(host.usable_cpus())
    most = max((p.threads for p in points if device_of(p.platform) == "cpu"), default=0)
    if most > usable and not forced:
        raise UsageError(
            f"{most} threads on {counted(usable, 'processor')} wait for each other; give {usable} "
            "or fewer, or measure that with --force-threads (of measure and sweep)"
        )


def with_live(plan: Plan, live: Live) -> Plan:
    """Send a live module to the measuring processes.

    Raises:
        UserModelError: it cannot be sent.
    """
    path = plan.folder / f"live-{new_session_id()}.pkl"
    try:
        send(live, path)
    except Exception as error:  # pickling runs the module's own code: any error
        path.unlink(missing_ok=True)
        raise UserModelError(
            f"the module cannot be sent to the measuring processes ({one_line(error)[:200]}); "
            "write a function that builds it, and give file.py:function"
        ) from error
    return replace(plan, live=str(path.resolve()))


def refuse_places(points: Sequence[Point], by: str) -> None:
    """Refuse ``--by`` where no runtime that was asked for can be broken down by that.

    Raises:
        UsageError: why, and which runtimes can; or why this host takes no samples.
    """
    names = list(dict.fromkeys(point.runtime for point in points))
    target = Target(device_of(points[0].platform))
    if not target.is_cuda and (refused := probe()):
        raise UsageError(f"--by needs perf-event: {refused}")
    if by == "operator" and not target.is_cuda and (unread := call_stacks.missing()):
        raise UsageError(f"--by operator: {unread}; give module or line")

    def able(kind: str) -> list[str]:
        known = registry.BUILT_IN
        return [name for name in known if kind in registry.get(name).places_on(target)]

    if any(by in registry.get(name).places_on(target) for name in names):
        return
    if not able(by):
        others = " or ".join(kind for kind in BY if able(kind))
        raise UsageError(f"no runtime can be broken down by {by} on {target.device}; give {others}")
    why = {
        "module": "what they run is no longer separate modules",
        "line": "they run no Python of the model",
        "operator": "functions that carry out their operators are not known by name",
    }[by]
    raise UsageError(
        f"{', '.join(names)} cannot be broken down by {by}: {why}; "
        f"--by {by} works in {', '.join(able(by))}"
    )


def why_not(point: Point) -> str | None:
    """Return why a point's runtime cannot run it here, as far as can be known at once."""
    runtime = registry.get(point.runtime)
    target = Target(device_of(point.platform), point.workload.precision, point.threads)
    return runtime.missing(target) or runtime.cannot(point.workload)


def refuse_unavailable(points: Iterable[Point]) -> None:
    """Refuse to begin a session of which nothing can run here.

    Raises:
        UsageError: why no runtime can, and what to install or choose for each.
    """
    reasons: dict[str, str] = {}
    for point in points:
        if point.runtime == FLOOR:
            continue
        reason = why_not(point)
        if reason is None:
            return
        reasons.setdefault(point.runtime, reason)
    if reasons:
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise UsageError(f"nothing that was asked for can run here: {listed}")
