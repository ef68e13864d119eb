"""Comparing from Python and for the command line: two results, one verdict a point.

Not called ``compare``: a module of that name would hide ``frameworktax.compare()``.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast, get_args

from frameworktax import api, store
from frameworktax.analysis.compare.comparison import Comparison, Metric, environments
from frameworktax.analysis.compare.comparison import compare as compare_runs
from frameworktax.analysis.compare.contrasts import (
    ELSEWHERE,
    LOADED,
    Constants,
    constants_of,
    sample_of,
)
from frameworktax.analysis.document import build
from frameworktax.analysis.grouping import gather
from frameworktax.errors import (
    DeploymentError,
    StoreError,
    UsageError,
    as_path,
    check_known,
    quoted,
    write_text,
)
from frameworktax.host.cache import cache_folder, private_file
from frameworktax.measure import orphans
from frameworktax.measure.plan import Plan, process_counts
from frameworktax.measure.reporter import Reporter
from frameworktax.records import (
    DEPLOYED,
    FLOOR,
    Environment,
    Record,
    Run,
    session_order,
    sessions_of,
)
from frameworktax.report import json_document
from frameworktax.runtimes import deployment
from frameworktax.stats import MIN_PROCESSES, UNTIL
from frameworktax.store.read import point_key
from frameworktax.store.shards import decode

CALIBRATION_SESSIONS, CALIBRATION_S = 12, 15.0
"""Sessions that show how far sessions of one program differ here, and the budget of each, s."""
AGAIN_S = 60.0
"""Of measuring a deployment again."""
Source = str | Path | Run | api.Results
"""A store's folder or shard, a document of ``--json``, a baseline, or results in memory."""


class Compared:
    """A comparison, and how to show it; ``comparison`` is the whole document."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    @property
    def exit_code(self) -> int:
        """0; 1 for a regression beyond the gate; 3 where a verdict is missing."""
        return self.comparison.exit_code

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``--json`` as plain data."""
        return json_document.dump(self.comparison)

    def comment(self) -> str:
        """Return it as Markdown for a pull request."""
        from frameworktax.report.compare_blocks import comment

        return comment(self.comparison)

    def __repr__(self) -> str:
        return f"<frameworktax comparison: {self.comparison.headline}>"

    def _repr_html_(self) -> str:
        from frameworktax.report.html import comparison_fragment

        return comparison_fragment(self.comparison)


def compare(
    a: Source,
    b: Source | None = None,
    *,
    baselines: Sequence[Source] = (),
    gate: float | None = None,
    metric: str = "latency",
    across: bool = False,
    runtimes: Mapping[str, str] | None = None,
    models: Mapping[str, str] | None = None,
) -> Compared:
    """Compare two results point by point: faster, slower, same, or cannot tell.

    Args:
        a: before: a store, a document, a baseline, or what ``measure`` returned.
        b: after. Left out: what ``runtimes`` or ``models`` name is compared within ``a``; without
            them each point's newest session in the store ``a`` with the session before it.
        baselines: further sessions of the program of ``a``, used together with it: what one
            session is off by, which blocks of its own do not show, averages out.
        gate: a regression beyond this fraction fails (``exit_code`` 1).
        metric: latency, tax or kernel.
        across: compare timings of different machines.
        runtimes: runtime before → runtime after, where they differ on purpose.
        models: the same for models.

    Returns:
        The comparison; see ``analysis.compare.comparison.Comparison``.

    Raises:
        UsageError: nothing in common, another machine without ``across``, an impossible gate.
        StoreError: a store or document cannot be read.
    """
    check(gate, metric)
    names = (name_of(a), name_of(a if b is None else b))
    if baselines and b is None:
        raise UsageError("--baseline adds to the side before; name both sides, BEFORE and AFTER")
    if b is not None:
        before, after = [read(source) for source in (a, *baselines)], read(b)
    elif runtimes or models:
        after = read(a)
        before = [after]
    else:
        earlier, after = last_two(a)
        before = [earlier]
        names = (f"{names[0]}, the session before", f"{names[0]}, the newest session")
    found = compare_runs(
        before,
        after,
        metric=cast(Metric, metric),
        gate=gate,
        across=across,
        runtimes=runtimes,
        models=models,
        names=names,
        constants=_constants(before, after),
    )
    return Compared(found)


def check(gate: float | None, metric: str = "latency") -> None:
    """Raise UsageError for an impossible gate or metric, before minutes of measuring for it."""
    if gate is not None and not 0 < gate < 1:
        raise UsageError(f"gate must be between 0 and 1, for example 0.05 (got {gate:g})")
    check_known("metric", metric, get_args(Metric))


def name_of(source: Source) -> str:
    """Return what a source is called in the result."""
    if isinstance(source, Run):
        return "results in memory"
    return str(source.store if isinstance(source, api.Results) else source)


def read(source: Source) -> Run:
    """Return a source as a document.

    Raises:
        StoreError: there is nothing, or it is neither a store nor a document.
    """
    if isinstance(source, Run):
        return source
    if isinstance(source, api.Results):
        return source.run
    path = as_path("the source", source)
    if _is_document(path):
        return json_document.load(path)
    if path.suffix == ".json" and not path.exists():
        raise StoreError(
            f"no file {path}; give a document of --json, or make a baseline: "
            f"frameworktax compare STORE --save-baseline {quoted(path)}"
        )
    return api.read_store(path).run


def _is_document(path: Path) -> bool:
    """Return whether a path is a file and no shard of a store, by its first line."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return b'"frameworktax.store"' not in file.readline(1000)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def last_two(source: Source) -> tuple[Run, Run]:
    """Return (each point's session before its newest, the newest ones) of one store.

    Raises:
        UsageError: not a store, or no point was measured twice.
    """
    if isinstance(source, Run) or (isinstance(source, str | Path) and _is_document(Path(source))):
        raise UsageError("compare needs two inputs; name a second one")
    folder = source.store if isinstance(source, api.Results) else as_path("the source", source)
    records, _ = store.read(folder)
    started = {session.session: session.started for session in sessions_of(records)}
    age = {r.session: session_order(r.session, started.get(r.session, "")) for r in records}
    newest: dict[str | None, tuple[str, str]] = {}
    of: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        of[record.session].append(record)
    for session in sorted(of, key=age.__getitem__):  # a point that failed in the newest has failed
        tried = (p for p in gather(of[session])[0] if p.measured and not p.cut_off)
        newest |= {p.point.key(): age[session] for p in tried}
    older = [r for r in records if (key := point_key(r)) in newest and age[r.session] < newest[key]]
    sessions = {r.session for r in older}  # their environments and calibrators, and no others
    older += [r for r in records if point_key(r) is None and r.session in sessions]
    last = [r for r in records if age[r.session] >= newest.get(point_key(r), ("", ""))]
    before, after = build(older), build(last)
    earlier = {m.point for m in before.measurements}
    if not any(m.point in earlier and m.runtime != FLOOR for m in after.measurements):
        raise UsageError(
            f"{folder} has no point in two sessions; measure again into it, name a second "
            "store, or give the names that correspond with --runtime BEFORE=AFTER"
        )
    return before, after


def baseline(run: Run) -> Run:
    """Return what a later comparison needs of a document: small enough for git.

    Single samples, curves and advice are left out; blocks and the calibrator stay. The harness's
    floor and points without a latency are no part of it.

    Raises:
        UsageError: nothing has a latency.
    """
    kept = [m for m in run.measurements if m.latency_ns is not None and m.runtime != FLOOR]
    if not kept:
        raise UsageError(f"no runtime but {FLOOR} has a latency; measure one for a baseline")
    small = (replace(m, samples_ns=(), kernel_detail_ns=None, symbols_ns=()) for m in kept)
    return replace(run, measurements=tuple(small), curves=(), advice=(), left_out=())


def save_baseline(source: Source, path: Path) -> Run:
    """Write a baseline: a ``frameworktax.run`` document with one measurement a line.

    Raises:
        UsageError: nothing in it has a latency, or the file cannot be written.
    """
    kept = baseline(read(source))
    data = json_document.dump(kept)
    rows = [json.dumps(m, ensure_ascii=False, allow_nan=False) for m in data.pop("measurements")]
    head = json.dumps(data, ensure_ascii=False, allow_nan=False)
    text = head[:-1] + ',\n"measurements": [\n' + ",\n".join(rows) + "\n]}\n"
    write_text(path, text)
    return kept


# --- constants of this host ----------------------------------------------------------------------


def calibrate(say: Callable[[str], None]) -> tuple[Constants, Path]:
    """Measure how far sessions of one program differ on this host, for later comparisons on it.

    A small BERT in eager mode, one thread, in sessions one after the other.

    Returns:
        The constants, and the file in the cache where ``compare`` finds them.

    Raises:
        UsageError: other load was on the processor, a session timed too few processes, or the cache
            cannot be written.
        NothingMeasuredError: nothing could be measured.
    """
    found = []
    for number in range(CALIBRATION_SESSIONS):
        say(f"session {number + 1} of {CALIBRATION_SESSIONS}, about {CALIBRATION_S:.0f} s each")
        with orphans.scratch(cache_folder()) as store:
            results = api.measure(
                "bert-tiny",
                length=32,
                runtimes="eager",
                batch=1,
                device="cpu",
                time_budget=CALIBRATION_S,
                twin="none",
                by="none",
                store=store,
                command=("doctor", "--calibrate"),
            )
        (m,) = (m for m in results if m.runtime != FLOOR)
        if any(note.code == LOADED for note in m.notes):
            raise UsageError("other load was on the processor; calibrate while this host is idle")
        found.append(sample_of(m))
        if (timed := len(found[-1].processes)) < MIN_PROCESSES:
            raise UsageError(
                f"a session timed {timed} of {MIN_PROCESSES} processes, too few to calibrate with; "
                "free memory and processors for it, and calibrate again"
            )
    constants = constants_of(found)
    path = _constants_file(cast(Environment, results.run.environment))  # measured: it has one
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with private_file(path) as partial:
        partial.write_text(json.dumps(asdict(constants)) + "\n", encoding="utf-8")
    return constants, path


def _constants_file(environment: Environment) -> Path:
    """Return where the constants of a host lie."""
    host = f"{environment.host}\n{environment.cpu}\n{environment.cores}"
    name = hashlib.blake2b(host.encode(), digest_size=8).hexdigest()
    return cache_folder() / "constants" / f"{name}.json"


def _constants(before: Sequence[Run], after: Run) -> Constants:
    """Return the constants of the host of both sides where they were measured, else another's."""
    sides = [run.environment for run in (*before, after)]
    apart = [d for side in sides for d in environments(side, after.environment) if d.machine]
    if after.environment is None or None in sides or apart:
        return ELSEWHERE
    try:
        text = _constants_file(after.environment).read_bytes()
    except (OSError, UsageError):  # none measured, or no cache that this user could have
        return ELSEWHERE
    try:
        found: Constants = decode(Constants, json.loads(text))
    except (TypeError, ValueError) as error:
        raise UsageError(f"constants of this host are damaged: {error}; calibrate again") from error
    return found


# --- a deployment beside its own proof -----------------------------------------------------------


def measure_again(
    folder: Path,
    *,
    gate: float | None = None,
    across: bool = False,
    time_budget: float = AGAIN_S,
    until: float = UNTIL,
    processes: int | None = None,
    reporter: Reporter | None = None,
    command: Sequence[str] = (),
) -> Compared:
    """Measure a deployment and compare its latency with that in its ``proof.json``.

    Neither the model nor its library is needed. ``gate`` and ``across`` are those of ``compare``,
    the others those of ``measure``.

    Raises:
        DeploymentError: it cannot be loaded here, or has no proof.
        UsageError: another machine without ``across``, an impossible gate.
        NothingMeasuredError: nothing could be measured.
    """
    check(gate)
    manifest = deployment.read(folder)  # says why it cannot be loaded, before anything is started
    try:
        if deployment.PROOF not in manifest.files:  # of an older version, or put there by others
            raise StoreError("the manifest has no hash of it")
        before = read(folder / deployment.PROOF)
    except StoreError as error:
        text = f"{folder}: {deployment.PROOF} is missing, damaged or not in {deployment.MANIFEST}"
        raise DeploymentError(f"{text}; rebuild it: {manifest.command}") from error
    plan = Plan(
        points=tuple(m.point for m in before.measurements),
        **process_counts(processes),
        until=until,
        budget_s=time_budget,
        twin="none",
        deployment=folder.resolve(),
    )
    with orphans.scratch(plan.folder) as store:
        after = api.run_plan(plan, store, reporter=reporter, command=command).run
    own = tuple(m for m in after.measurements if m.runtime == DEPLOYED)
    return compare(before, replace(after, measurements=own), gate=gate, across=across)
