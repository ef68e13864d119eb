"""Runs a program, and says what its calls of modules cost: the whole of ``frameworktax run``."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from frameworktax.analysis.advice import determined
from frameworktax.analysis.estimates import duration, percent, share_texts
from frameworktax.errors import UsageError, check_known, check_suffix, counted, quoted
from frameworktax.host.cache import temporary_folder
from frameworktax.programs import inputs, launch, observed
from frameworktax.programs.document import CALLS, Kind, Program, Section
from frameworktax.records import Note

BY = ("module", "none")


def run_program(
    program: str,
    arguments: Sequence[str],
    *,
    module: bool = False,
    by: str = "module",
    skip_first: int = 0,
    only: str | None = None,
    record: Path | None = None,
    values: bool = False,
) -> Program:
    """Run a program as it would run, and return what was seen.

    Args:
        program: a script, a program on the path, or a module's name.
        arguments: of the program.
        module: run it as ``python -m`` does.
        by: ``module`` breaks calls down by layer, ``none`` notes nothing inside of them.
        skip_first: first calls of each kind in a section, of copies together, that are left out of
            its numbers.
        only: pattern that names of kinds are searched for.
        record: takes a function that makes the module that pays most with inputs as they were
            seen; must end in ``.py``.
        values: of those inputs too, in an ``.npz`` file beside it; shapes and types alone if not.

    Raises:
        UsageError: there is no such program, it is not Python, or an argument is wrong.
    """
    check_known("--by", by, BY)
    check_suffix(record, [".py"])
    if values and record is None:
        raise UsageError("--input-values goes with --record-inputs inputs.py")
    try:
        pattern = re.compile(only) if only is not None else None
    except re.error as error:
        raise UsageError(f"--only '{only}' is no regular expression: {error}") from error
    command = launch.command(program, arguments, module=module)
    if record is not None and not inputs.is_replaceable(record):
        raise UsageError(f"--record-inputs {record} has other content; name another file")
    with temporary_folder("frameworktax-run-") as folder:
        noting = "" if record is None else "values" if values else "shapes"
        ended = launch.run(command, folder, by=by, inputs=noting)
        noted = observed.read_notes(folder)
        with tempfile.TemporaryDirectory() as other:
            cost = observed.measure_cost(Path(other))
        samples = observed.samples_of(ended)
        sections = observed.sections(
            noted, ended, samples, skip_first=skip_first, only=pattern, cost=cost
        )
        top = most_tax(sections)
        advice = _advice(sections, top, record, folder)
    said = [Note("sampling-refused", ended.refused)] if ended.refused else []
    said += [Note("calls-not-noted", f"process {one.pid}: {one.full}") for one in noted if one.full]
    shown = {kind.kind for section in sections for kind in section.kinds}
    if not shown or (only is None and shown.isdisjoint(CALLS)):
        said.append(Note("no-calls", _no_calls(noted, only)))
    wall_ns = ended.end_ns - ended.begin_ns
    name = f"-m {program}" if module else Path(program).name
    headline = _headline(name, wall_ns, sections, top, only)
    if ended.samples and (lost := ended.samples.lost):
        due = lost + len(ended.samples.pid)
        said.append(Note("samples-lost", f"{lost:,} of {due:,} samples were lost"))
    return Program(
        verb="run",
        command=tuple(command),
        status=ended.status,
        headline=headline,
        wall_ns=wall_ns,
        cpu_ns=len(ended.samples.pid) * ended.period_ns if ended.samples else None,
        period_ns=ended.period_ns or None,
        sections=tuple(sections),
        advice=advice,
        notes=tuple(said),
    )


def most_tax(sections: Sequence[Section]) -> Kind | None:
    """Return the module whose calls paid most tax; without any tax, that took most time."""
    every = (kind for one in sections for kind in one.kinds)
    modules = [one for one in every if one.kind == "module" and one.skipped < one.calls]
    taxed = [kind for kind in modules if kind.tax_ns is not None]
    return max(taxed or modules, key=_paid_ns, default=None)


def _paid_ns(kind: Kind) -> float:
    share = kind.tax_share.value if kind.tax_share else 1.0
    return kind.wall_ns * share


def _headline(
    name: str, wall_ns: int, sections: Sequence[Section], top: Kind | None, only: str | None = None
) -> str:
    calling = [one for one in sections if any(kind.kind in CALLS for kind in one.kinds)]
    if not calling:
        which = "of torch modules" if only is None else f"with '{only}' in their name"
        return f"{name}: no calls {which} were seen in {duration(wall_ns)}"
    kinds = [kind for one in calling for kind in one.kinds if kind.kind in CALLS]
    total = sum(kind.calls for kind in kinds)
    if total == sum(kind.skipped for kind in kinds):
        return f"{name}: --skip-first leaves out all of its {counted(total, 'call')}"
    most = max(calling, key=lambda section: section.calls_ns)
    text = f"{name}: calls took {duration(most.calls_ns)} of {duration(wall_ns)}"
    threads = sum(section.threads for section in calling)
    text += f" in {most.threads} of {threads} threads" if threads > 1 else ""
    if top is None:
        return text
    if top.tax_share is None:
        return f"{text}; {top.name} takes most, {duration(top.wall_ns)}; its tax is not known"
    if not determined(top.tax_share):
        low, high = 100 * top.tax_share.low, 100 * top.tax_share.high
        return f"{text}; the tax of {top.name} is not determined ({low:.0f} to {high:.0f} %)"
    value, half = share_texts(top.tax_share)
    share = f"{value} ±{half} %" if half else f"{value} %"
    paid = f"{duration(_paid_ns(top))} of framework tax, {share} of its time"
    return f"{text}; {top.name} pays most{_of_those(top, sections)}: {paid}"


def _of_those(top: Kind, sections: Sequence[Section]) -> str:
    """Return among which modules it pays most, empty for all: one of unknown tax may pay more."""
    taxless = (kind for one in sections for kind in one.kinds if kind.tax_share is None)
    longest_ns = max((kind.wall_ns for kind in taxless if kind.kind == "module"), default=0)
    return " of those whose tax is known" if longest_ns > _paid_ns(top) else ""


def _no_calls(noted: Sequence[observed.ProcessNotes], only: str | None) -> str:
    any_rows = any(thread.rows.size for one in noted for thread in one.threads.values())
    if only is not None and any_rows:
        return f"no name of what was called has '{only}' in it; leave --only out"
    return (
        "no torch.nn.Module was called, or by a Python that ignores PYTHONPATH (-I, -E); a "
        "function that torch.compile compiled as a whole calls none: compile the module instead"
    )


# --- advice ---------------------------------------------------------------------------------------


def _advice(
    sections: Sequence[Section], top: Kind | None, path: Path | None, folder: Path
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if top is None:
        return ()
    paid = f"{top.name}, called {counted(top.calls - top.skipped, 'time')}, "
    if top.tax_share is None:
        paid += f"takes most, {duration(top.wall_ns)}"
    elif not determined(top.tax_share):
        paid += f"takes {duration(top.wall_ns)}, and its tax is not determined"
    else:
        paid += f"pays most{_of_those(top, sections)}: {percent(top.tax_share.value)} of its "
        paid += duration(top.wall_ns)
    if path is None:
        text = f"{paid}. To measure and replace it, run again with --record-inputs inputs.py"
        return ((text, ()),)
    if not top.inputs:
        return ((f"{paid}; what it was called with was not seen", ()),)
    said = inputs.write(top, path, folder)
    at = quoted(f"{path}:build")
    text = f"{paid}. Look through {path}"
    text += f" ({'; '.join(said)})" if said else ""
    text += ", then measure it by itself, and replace it"
    size = inputs.batch(top)
    at += f" --batch {size}" if size else ""
    return ((text, (f"frameworktax measure {at}", f"frameworktax optimize {at} -o deploy")),)
