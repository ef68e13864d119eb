"""From winners to a folder: exported, described, proven, and put in its place whole."""

from __future__ import annotations

import errno
import math
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from frameworktax import comparing, runtimes
from frameworktax.analysis.advice import difference, proven
from frameworktax.analysis.estimates import inverse, times
from frameworktax.errors import DeploymentError, UsageError, WorkerError
from frameworktax.measure.plan import Plan
from frameworktax.models.ragged import MASK
from frameworktax.optimize.blocks import readme, triple
from frameworktax.optimize.proof import (
    MOST_BETWEEN,
    Proof,
    Prover,
    between,
    draws_between,
)
from frameworktax.optimize.race import Candidate, by_shape
from frameworktax.records import DEPLOYED, REFERENCE, Measurement, Run, Workload
from frameworktax.runtimes import deployment
from frameworktax.runtimes.artifacts import FOLDER, Artifact
from frameworktax.runtimes.deployment import Manifest, Padding, Shape, configuration
from frameworktax.runtimes.interface import Interface
from frameworktax.version import __version__

if TYPE_CHECKING:
    from frameworktax.optimize.run import Asked

LENGTHS = 4
"""Lengths between those asked for that padding is proven at; each builds the model."""
REPLACED = ".replaced"
"""The end of the name under which an older deployment waits until the new one is in its place."""
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
UNCLEAR = -1
"""In place of a dimension: more than one changed, or by another amount."""
Failures = Mapping[tuple[Workload, str], str]
"""(shape, runtime) → why it cannot be delivered."""


@dataclass(frozen=True, slots=True)
class Made:
    """A deployment that is not in its place yet."""

    manifest: Manifest
    failures: Failures = field(default_factory=dict)


def check_output(folder: Path) -> None:
    """Refuse a folder that holds something else.

    Raises:
        UsageError: it is a file, or a folder that is neither empty nor a deployment.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is no folder; name another with -o")
    if folder.is_dir() and any(folder.iterdir()):
        try:
            deployment.parse(folder)
        except DeploymentError as error:
            raise UsageError(
                f"{folder} holds something that is no deployment; name another with -o"
            ) from error


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``output``, where ``finish`` makes a deployment of it.

    Raises:
        UsageError: nothing can be written there, the disk being full for one.
    """
    folder = output.parent.resolve() / f".{output.name}-{os.urandom(4).hex()}.partial"
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _tidy(output)
        folder.mkdir(mode=0o755)
        yield folder
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise UsageError(
            f"cannot write {output}: {error.strerror}; what was measured is kept: free space, or "
            "name another with -o, and run the same command with --resume"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tidy(output: Path) -> None:
    """Remove what a killed run left; an older deployment that it had moved away comes back."""
    for litter in output.parent.glob(f".{output.name}-*"):
        if litter.suffix == REPLACED and not output.exists():
            litter.replace(output)
        elif litter.suffix in (REPLACED, ".partial"):
            shutil.rmtree(litter, ignore_errors=True)


def make(asked: Asked, decided: Sequence[Candidate], folder: Path, prover: Prover) -> Made:
    """Export the winners into a folder, describe it, and prove the outputs of every shape.

    What an earlier attempt exported for the same shapes stays.

    Raises:
        UsageError: the module is called with or returns what no deployment can stand in for.
    """
    winners = {one.workload: one for one in decided if one.won}
    failures = dict(_export(winners, folder, prover))
    shapes, interface = [], None
    for workload, group in by_shape(decided).items():
        try:
            found, sizes = prover.interface(workload)
        except WorkerError as error:
            raise UsageError(f"{workload.model} cannot be delivered: {error}") from error
        interface = interface or found
        winner = winners.get(workload)
        if winner is not None and found.output != interface.output:
            text = "the module returns another structure here than at the first shape"
            failures[workload, winner.runtime] = text
        place = _place(workload, winner.runtime) if winner is not None else None
        shapes.append(
            Shape(
                batch=workload.batch,
                length=workload.length,
                sizes=sizes,
                runtime=winner.runtime if winner else None,
                folder=place,
                reason=None
                if winner
                else f"{group[0].runtime}, the fastest candidate: {group[0].reason}",
            )
        )
    if interface is None or failures:
        return Made(_manifest(asked, interface, shapes, folder), failures)
    shapes += _between(winners, folder, prover)
    manifest = _manifest(asked, interface, shapes, folder)
    deployment.write(folder, manifest)
    return _prove(asked, manifest, winners, folder, prover)


def _place(workload: Workload, runtime: str) -> str:
    return f"{configuration(workload.length)}/{runtime.replace('@', '-')}"


def _export(
    winners: Mapping[Workload, Candidate], folder: Path, prover: Prover
) -> Iterator[tuple[tuple[Workload, str], str]]:
    """Export each winner once a length, for all the batch sizes that it won; yield failures."""
    wanted: dict[str, list[Candidate]] = {}
    for one in winners.values():
        wanted.setdefault(_place(one.workload, one.runtime), []).append(one)
    for there in [p for p in folder.glob("*/*") if p.is_dir()]:
        name, batches = there.relative_to(folder).as_posix(), _batches(there)
        if batches != {one.workload.batch for one in wanted.get(name, ())}:
            shutil.rmtree(there)
    for name, ones in wanted.items():
        if (folder / name).exists():
            continue
        first = ones[0]
        try:
            won = sorted(one.workload.batch for one in ones)
            prover.export(first.workload, first.runtime, won, folder / name)
        except WorkerError as error:
            for one in ones:
                yield (one.workload, one.runtime), f"exporting it to deliver it: {error}"
            shutil.rmtree(folder / name, ignore_errors=True)
            continue
        for beside in (folder / name).iterdir():  # what compiling left
            if beside.name != FOLDER:
                shutil.rmtree(beside) if beside.is_dir() else beside.unlink()


def _batches(place: Path) -> set[int]:
    try:
        return set(Artifact(place).manifest.files)
    except WorkerError:
        return set()


def _between(
    winners: Mapping[Workload, Candidate], folder: Path, prover: Prover
) -> Iterator[Shape]:
    """Yield shapes between those that were asked for, where one dynamic artifact serves both."""
    served: dict[str, list[Candidate]] = {}
    for one in winners.values():
        place = _place(one.workload, one.runtime)
        artifact = Artifact(folder / place)
        if artifact.manifest.files[one.workload.batch] == artifact.dynamic:
            served.setdefault(place, []).append(one)
    taken = {(w.length, w.batch) for w in winners}
    for place, ones in served.items():
        for batch in between([one.workload.batch for one in ones]):
            workload = replace(ones[0].workload, batch=batch)
            if (workload.length, batch) not in taken:
                taken.add((workload.length, batch))
                yield Shape(
                    batch=batch,
                    length=workload.length,
                    sizes=prover.interface(workload)[1],
                    runtime=ones[0].runtime,
                    folder=place,
                    is_between=True,
                )


def _prove(
    asked: Asked,
    manifest: Manifest,
    winners: Mapping[Workload, Candidate],
    folder: Path,
    prover: Prover,
) -> Made:
    """Prove every shape; one between that is not proven is not served."""
    prover.forget()
    between_draws = draws_between(sum(shape.is_between for shape in manifest.shapes))
    shapes, failures = [], {}
    for shape in manifest.shapes:
        if shape.runtime is None:
            shapes.append(shape)
            continue
        workload = _workload(asked, shape)
        precision = runtimes.get(shape.runtime).computes_in(workload.precision)
        wanted = between_draws if shape.is_between else asked.draws
        proof = prover.prove(folder, workload, wanted, precision)
        if not proof.failure:
            shapes.append(
                replace(
                    shape,
                    draws=proof.draws,
                    difference=proof.difference,
                    tolerance=proof.tolerance,
                )
            )
        elif not shape.is_between:
            failures[workload, shape.runtime] = proof.failure
    manifest = replace(manifest, shapes=tuple(shapes))
    if not failures:
        manifest = _padded(asked, manifest, folder, prover)
    deployment.write(folder, manifest)
    return Made(manifest, failures)


# --- sizes between the shapes ---------------------------------------------------------------------


def _padded(asked: Asked, manifest: Manifest, folder: Path, prover: Prover) -> Manifest:
    """Return the manifest with the padding that is proven equal between its shapes.

    Rows are added, then tokens, then both: what is not proven together is not done together.
    """
    known = {(shape.length, shape.batch) for shape in deployment.served(manifest.shapes)}
    batches = sorted({w.batch for w in asked.workloads})
    lengths = sorted({w.length for w in asked.workloads if w.length is not None})
    some = between(lengths, LENGTHS)
    rows = [(n, b) for n in lengths or (None,) for b in between(batches, max(batches))]
    tokens = [(n, b) for n in some for b in (batches[0], batches[-1])]
    both = [(n, b) for n in some for b in between(batches, LENGTHS)]
    rows = [at for at in rows if at not in known]
    if not rows and not tokens:
        return manifest

    def tried(padding: Padding, gaps: Sequence[tuple[int | None, int]]) -> Padding | None:
        trial = replace(manifest, padding=padding)
        deployment.write(folder, trial)
        prover.forget()
        proofs = list(_proofs(asked, trial, gaps, folder, prover))
        if not proofs or any(proof.failure for proof in proofs):
            return None
        draws = padding.draws + sum(proof.draws for proof in proofs)
        largest = max([padding.difference, *(proof.difference for proof in proofs)])
        return replace(padding, draws=draws, difference=largest)

    try:
        padding = _axes(asked.workloads[0], lengths, manifest.interface, prover)
        if padding is None:
            return manifest
        padding = (rows and tried(replace(padding, batch=True), rows)) or padding
        if _has_mask(manifest.interface, padding):
            alone = tried(replace(padding, length=True), tokens)
            if alone is not None and both and (padding.batch or not rows):
                alone = tried(replace(alone, batch=True), both)
            padding = alone or padding
    except WorkerError:
        return manifest  # the model cannot be asked at other sizes
    finally:
        prover.forget()
    return replace(manifest, padding=padding) if padding.batch or padding.length else manifest


def _proofs(
    asked: Asked,
    manifest: Manifest,
    gaps: Sequence[tuple[int | None, int]],
    folder: Path,
    prover: Prover,
) -> Iterator[Proof]:
    """Yield the proof of gaps that padding would serve, spread, up to the first that fails."""
    served = []
    for length, batch in gaps[:: math.ceil(len(gaps) / MOST_BETWEEN) or 1]:  # a step is not 0
        workload = replace(asked.workloads[0], length=length, batch=batch)
        shape = deployment.padded_to(manifest, prover.sizes(workload)[0])
        if shape is not None:
            served.append((workload, shape))
    for workload, shape in served:
        precision = runtimes.get(str(shape.runtime)).computes_in(workload.precision)
        proof = prover.prove(folder, workload, draws_between(len(served)), precision)
        yield proof
        if proof.failure:
            return


def _axes(
    workload: Workload, lengths: Sequence[int], interface: Interface, prover: Prover
) -> Padding | None:
    """Return which dimensions of inputs and outputs are batch and length; None if unclear.

    Found by drawing at another batch size, and at another length: the one dimension that was the
    one and is the other.
    """
    here = prover.sizes(workload)
    found = []
    others = [replace(workload, batch=workload.batch + 1)]
    others += [replace(workload, length=lengths[-1])] if len(lengths) > 1 else []
    for axis, other in zip(("batch", "length"), others, strict=False):
        pair = getattr(workload, axis), getattr(other, axis)
        there = prover.sizes(other)
        for side in (0, 1):
            found.append([_axis(a, b, pair) for a, b in zip(here[side], there[side], strict=True)])
    if any(at == UNCLEAR for side in found for at in side):
        return None
    inputs, outputs = found[0], found[1]
    along = found[2:] or [[None] * len(inputs), [None] * len(outputs)]
    return Padding(
        inputs=tuple(zip(inputs, along[0], strict=True)),
        outputs=tuple(zip(outputs, along[1], strict=True)),
    )


def _axis(small: Sequence[int], large: Sequence[int], pair: tuple[int, int]) -> int | None:
    changed = [at for at, (a, b) in enumerate(zip(small, large, strict=False)) if a != b]
    if len(small) != len(large) or len(changed) > 1:
        return UNCLEAR
    if not changed:
        return None
    return changed[0] if (small[changed[0]], large[changed[0]]) == pair else UNCLEAR


def _has_mask(interface: Interface, padding: Padding) -> bool:
    pairs = zip(interface.names, padding.inputs, strict=True)
    return any(name == MASK and at[1] is not None for name, at in pairs)


def _manifest(
    asked: Asked, interface: Interface | None, shapes: Sequence[Shape], folder: Path
) -> Manifest:
    used = {shape.runtime for shape in shapes if shape.runtime is not None}
    needed = {"numpy", *(name for one in used for name in runtimes.get(one).serves_with)}
    return Manifest(
        model=asked.workloads[0].model,
        is_live=asked.live is not None,
        command=asked.command,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        frameworktax=__version__,
        python=platform.python_version(),
        machine=deployment.this_machine(),
        packages={name: metadata.version(name) for name in sorted(needed)},
        device=asked.device,
        precision=asked.target.precision,
        threads=asked.threads,
        aim=asked.aim,
        interface=interface or Interface(parameters=(), inputs=(), dtypes=()),
        shapes=tuple(shapes),
        files=deployment.files_in(folder),
    )


# --- the gain, measured again ---------------------------------------------------------------------


def plan(asked: Asked, manifest: Manifest, folder: Path, budget_s: float) -> Plan:
    """Return the plan of a deployment beside eager, at every shape that was asked for."""
    at = [
        _workload(asked, shape)
        for shape in deployment.served(manifest.shapes)
        if not shape.is_between
    ]
    return Plan(
        points=tuple(asked.point(w, name) for w in at for name in (REFERENCE, DEPLOYED)),
        processes=asked.processes,
        until=asked.until,
        budget_s=budget_s,
        setup_limit_s=asked.setup_limit_s,
        twin="none",
        deployment=folder,
    )


def judged(proof: Run, manifest: Manifest) -> Run:
    """Return the proof, outputs judged by the tolerance of what serves each shape."""
    tolerances = {(s.length, s.batch): s.tolerance for s in deployment.served(manifest.shapes)}

    def again(m: Measurement) -> Measurement:
        tolerance = tolerances.get((m.workload.length, m.workload.batch))
        found = m.parity.max_relative_difference if m.parity is not None else None
        if m.runtime != DEPLOYED or m.parity is None or found is None or tolerance is None:
            return m
        verdict = found <= tolerance
        return replace(m, parity=replace(m.parity, tolerance=tolerance, within_tolerance=verdict))

    return replace(proof, measurements=tuple(map(again, proof.measurements)))


def with_gains(made: Made, asked: Asked, proof: Run) -> Made:
    """Return the deployment with its measured gains, or why a shape's is not confirmed."""
    found = {m.workload: m for m in proof.measurements if m.runtime == DEPLOYED}
    shapes, failures = [], {}
    for shape in made.manifest.shapes:
        if shape.runtime is None or shape.is_between:
            shapes.append(shape)
            continue
        workload = _workload(asked, shape)
        m = found.get(workload)
        why = _unconfirmed(m)
        if m is None or why or m.ratio_to_eager is None:
            failures[workload, shape.runtime] = f"delivered: {why}"
            continue
        gain, latency = inverse(m.ratio_to_eager), m.latency_ns
        shapes.append(replace(shape, gain=triple(gain), latency_ns=triple(latency)))
    return Made(replace(made.manifest, shapes=tuple(shapes)), failures)


def _unconfirmed(m: Measurement | None) -> str:
    if m is None or m.status != "ok":
        return f"not measured: {m.reason if m else 'left out'}"
    if not proven(m.parity):
        return difference(m.parity)
    if m.ratio_to_eager is None:
        return "too few blocks to compare it with eager; give a longer --time-budget"
    gain = inverse(m.ratio_to_eager)
    if gain.low <= 1:
        return f"its gain is not proven: {times(gain.value)} ({gain.low:.2f} to {gain.high:.2f})"
    return ""


def _workload(asked: Asked, shape: Shape) -> Workload:
    return replace(asked.workloads[0], length=shape.length, batch=shape.batch)


# --- in its place ---------------------------------------------------------------------------------


def finish(folder: Path, asked: Asked, manifest: Manifest, proof: Run) -> None:
    """Write what people and ``compare`` read, and put the folder in its place whole."""
    own = tuple(m for m in proof.measurements if m.runtime == DEPLOYED)
    comparing.save_baseline(replace(proof, measurements=own), folder / deployment.PROOF)
    (folder / "requirements.txt").write_text(
        deployment.requirements(manifest.packages, manifest.frameworktax), encoding="utf-8"
    )
    (folder / "README.md").write_text(readme(manifest), encoding="utf-8")
    deployment.write(folder, manifest)
    older = folder.with_suffix(REPLACED)
    if asked.output.exists():
        asked.output.replace(older)
    try:
        folder.replace(asked.output)
    except OSError:
        if older.exists():
            older.replace(asked.output)
        raise
    shutil.rmtree(older, ignore_errors=True)
