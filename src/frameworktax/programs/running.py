"""Runs a program, and says what its calls of modules cost: the whole of ``frameworktax run``."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from frameworktax.analysis.estimates import duration, percent
from frameworktax.errors import UsageError
from frameworktax.programs import launch, observed
from frameworktax.programs.document import Kind, Program, Section
from frameworktax.records import Note

BY = ("module", "line", "none")


def run_program(
    program: str,
    arguments: Sequence[str],
    *,
    module: bool = False,
    by: str = "module",
    skip_first: int = 0,
    only: str | None = None,
    inputs: Path | None = None,
) -> Program:
    """Run a program as it would run, and return what was seen.

    Args:
        program: a script, a program on the path, or a module's name.
        arguments: of the program.
        module: run it as ``python -m`` does.
        by: ``module`` breaks calls down by layer, ``line`` also looks at lines of Python.
        skip_first: calls of each kind that are left out of its numbers.
        only: pattern that names of kinds are searched for.
        inputs: takes a function that makes the module that pays most with inputs as they were
            seen; must end in ``.py``.

    Raises:
        UsageError: there is no such program, it is not Python, or an argument is wrong.
    """
    if by not in BY:
        raise UsageError(f"no --by {by}; choose {', '.join(BY)}")
    if inputs is not None and inputs.suffix != ".py":
        raise UsageError(f"cannot write inputs to '{inputs}'; name a file that ends in .py")
    try:
        pattern = re.compile(only) if only is not None else None
    except re.error as error:
        raise UsageError(f"--only '{only}' is no regular expression: {error}") from error
    command = launch.command(program, arguments, module=module)
    with tempfile.TemporaryDirectory(prefix="frameworktax-run-", ignore_cleanup_errors=True) as at:
        folder = Path(at)
        ended = launch.run(command, folder, by=by, inputs=inputs is not None)
        noted = observed.read_notes(folder)
        with tempfile.TemporaryDirectory() as other:
            cost = observed.measure_cost(Path(other))
    samples = observed.samples_of(ended)
    sections = observed.sections(
        noted, ended, samples, skip_first=skip_first, only=pattern, cost=cost
    )
    said = [Note("sampling-refused", ended.refused)] if ended.refused else []
    said += [Note("calls-not-noted", f"process {one.pid}: {one.full}") for one in noted if one.full]
    if not any(section.kinds for section in sections):
        said.append(Note("no-calls", _no_calls(noted, only)))
    lost = ended.samples.lost if ended.samples else 0
    if lost:
        said.append(Note("samples-lost", f"{lost} samples were lost"))
    wall_ns = ended.end_ns - ended.begin_ns
    name = f"-m {program}" if module else Path(program).name
    top = most_tax(sections)
    return Program(
        verb="run",
        command=tuple(command),
        status=ended.status,
        headline=_headline(name, wall_ns, sections, top),
        wall_ns=wall_ns,
        cpu_ns=len(ended.samples.pid) * ended.period_ns if ended.samples else None,
        period_ns=ended.period_ns or None,
        sections=tuple(sections),
        advice=_advice(top, inputs),
        notes=tuple(said),
    )


def most_tax(sections: Sequence[Section]) -> Kind | None:
    """Return the module whose calls paid most tax; without any tax, that took most time."""
    modules = [kind for one in sections for kind in one.kinds if kind.kind == "module"]
    taxed = [kind for kind in modules if kind.tax_ns is not None]
    return max(taxed or modules, key=_paid_ns, default=None)


def _paid_ns(kind: Kind) -> float:
    share = kind.tax_share.value if kind.tax_share else 1.0
    return kind.wall_ns * share


def _headline(name: str, wall_ns: int, sections: Sequence[Section], top: Kind | None) -> str:
    calling = [section for section in sections if section.kinds]
    if not calling:
        return f"{name}: no calls of torch modules were seen in {duration(wall_ns)}"
    calls_ns = max(sum(kind.wall_ns for kind in section.kinds) for section in calling)
    text = f"{name}: calls took {duration(calls_ns)} of {duration(wall_ns)}"
    if len(calling) > 1:
        text += f" in one of {len(calling)} threads"
    if top is None:
        return text
    if top.tax_share is None:
        return f"{text}; {top.name} takes most, {duration(top.wall_ns)}; its tax is not known"
    half = 50 * (top.tax_share.high - top.tax_share.low)
    return (
        f"{text}; {top.name} pays most: {duration(_paid_ns(top))} of framework tax, "
        f"{100 * top.tax_share.value:.0f} ±{half:.0f} % of its time"
    )


def _no_calls(noted: Sequence[observed.ProcessNotes], only: str | None) -> str:
    if any(thread.rows.size for one in noted for thread in one.threads.values()):
        return f"no name of what was called has '{only}' in it; leave --only out"
    return "no torch.nn.Module was called, or by a Python that ignores PYTHONPATH (-I, -E)"


# --- advice ---------------------------------------------------------------------------------------


def _advice(top: Kind | None, inputs: Path | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if top is None:
        return ()
    paid = f"{top.name}, called {top.calls:,} times, pays most"
    if top.tax_share is not None:
        paid += f": {percent(top.tax_share.value)} of its {duration(top.wall_ns)}"
    if inputs is None:
        text = f"{paid}. To measure and replace it, run again with --record-inputs inputs.py"
        return ((text, ()),)
    if not top.inputs:
        return ((f"{paid}; what it was called with was not seen", ()),)
    inputs.write_text(builder(top), encoding="utf-8")
    at = shlex.quote(f"{inputs}:build")
    text = f"{paid}. Look through {inputs}, then measure it by itself, and replace it"
    return ((text, (f"frameworktax measure {at}", f"frameworktax optimize {at} -o deploy")),)


def builder(kind: Kind) -> str:
    """Return Python source with a function ``build`` for ``measure`` and ``optimize``.

    It makes the module without arguments and inputs of the shapes and types that were seen most.
    """
    module, _, name = kind.import_name.partition(":")
    script = module in ("__main__", "__mp_main__")
    source = Path(kind.source.rpartition(":")[0]).resolve()
    (args, kwargs), count = kind.inputs[0]
    if script:
        module = source.stem
    path = f"sys.path.insert(0, {json.dumps(str(source.parent))})" if script else ""
    made = f"kwargs = {_source(kwargs)}\n    " if kwargs else ""
    return f'''"""{kind.name} with inputs as in {count} of {kind.detailed} calls looked at."""

import sys

import torch

{path}


def build():
    from {module} import {name.partition(".")[0]}

    module = {name}()  # give it the arguments and weights that the program gives it
    args = {_source(tuple(args))}
    {made}return module.eval(), {"kwargs" if kwargs else "args"}
'''


def _source(value: Any) -> str:
    """Return source for a value of which shape and type are known."""
    if isinstance(value, dict) and set(value) == {"shape", "dtype"}:
        shape, dtype = value["shape"], value["dtype"]
        if "float" in dtype:
            return f"torch.randn({shape}, dtype={dtype})"
        return f"torch.ones({shape}, dtype={dtype})"
    if isinstance(value, dict) and set(value) == {"type"}:
        return json.dumps(f"put a value of type {value['type']} here")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {_source(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{_source(one)}, " for one in value) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(_source, value)) + "]"
    return repr(value)
