"""From winners to a folder: exported, described, proven, and put in its place whole.

The proof asks the delivered artifact as its user asks it: does it compute what eager computes? One
fresh process builds the model, draws inputs and runs eager on them; another loads the deployment,
of which it knows the folder alone, and is called with the same inputs, as torch's tensors and every
fourth time as numpy's arrays. The outputs are compared here.
"""

from __future__ import annotations

import errno
import math
import os
import platform
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from frameworktax import comparing, host, runtimes
from frameworktax.analysis.advice import difference, proven
from frameworktax.analysis.estimates import inverse, times
from frameworktax.errors import DeploymentError, UsageError, WorkerError
from frameworktax.measure import parity
from frameworktax.measure.plan import Plan
from frameworktax.measure.process import Worker
from frameworktax.measure.protocol import Drawn
from frameworktax.measure.worker import Server
from frameworktax.models.ragged import MASK
from frameworktax.optimize.blocks import readme, triple
from frameworktax.optimize.race import Candidate, by_shape
from frameworktax.records import DEPLOYED, REFERENCE, Measurement, Run, Workload
from frameworktax.runtimes import deployment
from frameworktax.runtimes.artifacts import FOLDER, Artifact
from frameworktax.runtimes.base import Target
from frameworktax.runtimes.deployment import Interface, Manifest, Padding, Shape, configuration
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
DRAWS = 32
"""Inputs over which outputs are compared: the model's own, edge values and random ones."""
LEAST_BETWEEN = 4
"""Draws of a shape between those that were asked for; all of them together have ``DRAWS``."""
MOST_BETWEEN = 16
"""Such shapes that one artifact is proven at."""
TRIES = 2
"""How many times the wanted number is drawn before eager's outputs are said to prove nothing."""
Failure = tuple[tuple[Workload, str], str]
"""(shape, runtime), and why it cannot be delivered."""


def check_output(folder: Path, store: Path) -> None:
    """Refuse a folder that holds something else: all that is in it is replaced.

    Raises:
        UsageError: it is a file, a folder that is neither empty nor a deployment, or one that the
            command runs or keeps its samples in.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is no folder; name another with -o")
    for inside, what in ((Path.cwd(), "this command runs"), (store.resolve(), "the store is")):
        if inside.is_relative_to(folder.resolve()):
            raise UsageError(
                f"{folder} would be replaced as a whole, and {what} in it; name another with -o"
            )
    if folder.is_dir() and any(folder.iterdir()):
        try:
            deployment.parse(folder)
        except DeploymentError as error:
            raise UsageError(
                f"{folder} holds something that is no deployment; name another with -o"
            ) from error


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``output``, in which a ``Delivery`` is made.

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
    own = re.compile(rf"\.{re.escape(output.name)}-[0-9a-f]{{8}}\.(partial|replaced)")
    for litter in [path for path in output.parent.iterdir() if own.fullmatch(path.name)]:
        if litter.suffix == REPLACED and not output.exists():
            litter.replace(output)
        else:
            shutil.rmtree(litter, ignore_errors=True)


class Delivery:
    """A deployment in the making: exported, described, proven, and put in its place whole.

    Attributes:
        manifest: of the last attempt.
        failures: of the last attempt, (shape, runtime) → why it cannot be delivered.

    Args:
        asked: what is to be optimised.
        folder: of the deployment until it is in its place; empty.
        prover: builds the model, exports it and compares outputs.
    """

    manifest: Manifest

    def __init__(self, asked: Asked, folder: Path, prover: Prover) -> None:
        self._asked, self._folder, self._prover = asked, folder, prover
        self.failures: dict[tuple[Workload, str], str] = {}

    def make(self, decided: Sequence[Candidate]) -> None:
        """Export the winners into the folder, describe it, and prove the outputs of every shape.

        What an earlier attempt exported for the same shapes stays.

        Raises:
            UsageError: the module is called with or returns what no deployment can stand in for.
        """
        winners = {one.workload: one for one in decided if one.won}
        self.failures = dict(self._export(winners.values()))
        shapes, interfaces = [], []
        for workload, group in by_shape(decided).items():
            try:
                interface, sizes = self._prover.interface(workload)
            except WorkerError as error:
                raise UsageError(f"{workload.model} cannot be delivered: {error}") from error
            interfaces.append(interface)
            shape = Shape(batch=workload.batch, length=workload.length, sizes=sizes)
            winner = winners.get(workload)
            if winner is None:
                why = f"{group[0].runtime}, the best candidate: {group[0].reason}"
                shapes.append(replace(shape, reason=why))
                continue
            if interface.output != interfaces[0].output:
                text = "the module returns another structure here than at the first shape"
                self.failures[workload, winner.runtime] = text
            shapes.append(replace(shape, runtime=winner.runtime, folder=_place(winner)))
        if not self.failures:
            shapes += self._between(winners.values())
            self._describe(interfaces[0], shapes)
            self._prove()

    def _export(self, winners: Collection[Candidate]) -> Iterator[Failure]:
        """Export each winner once a length, for all the batch sizes that it won."""
        wanted = _by_place(winners)
        for there in [p for p in self._folder.glob("*/*") if p.is_dir()]:
            name = there.relative_to(self._folder).as_posix()
            if _batches(there) != {one.workload.batch for one in wanted.get(name, ())}:
                shutil.rmtree(there)
        for name, ones in wanted.items():
            to = self._folder / name
            if to.exists():
                continue
            try:
                won = sorted(one.workload.batch for one in ones)
                self._prover.export(ones[0].workload, ones[0].runtime, won, to)
            except WorkerError as error:
                for one in ones:
                    yield (one.workload, one.runtime), f"exporting it to deliver it: {error}"
                shutil.rmtree(to, ignore_errors=True)
                continue
            for beside in to.iterdir():  # what compiling left
                if beside.name != FOLDER:
                    shutil.rmtree(beside) if beside.is_dir() else beside.unlink()

    def _between(self, winners: Collection[Candidate]) -> Iterator[Shape]:
        """Yield shapes between those that were asked for, where a dynamic artifact serves both.

        One that was asked for and left to eager is none: the artifact is not faster there.
        """
        taken = {(w.length, w.batch) for w in self._asked.workloads}
        for place, ones in _by_place(winners).items():
            artifact = Artifact.read(self._folder / place)
            files, batches = artifact.files, [one.workload.batch for one in ones]
            for batch in between([n for n in batches if files[n] == artifact.dynamic]):
                workload = replace(ones[0].workload, batch=batch)
                if (workload.length, batch) not in taken:
                    taken.add((workload.length, batch))
                    yield Shape(
                        batch=batch,
                        length=workload.length,
                        sizes=self._prover.interface(workload)[1],
                        runtime=ones[0].runtime,
                        folder=place,
                        is_between=True,
                    )

    def _describe(self, interface: Interface, shapes: Sequence[Shape]) -> None:
        asked = self._asked
        used = {shape.runtime for shape in shapes if shape.runtime is not None}
        needed = {"numpy", *(name for one in used for name in runtimes.get(one).serves_with)}
        self._write(
            Manifest(
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
                interface=interface,
                shapes=tuple(shapes),
                files=deployment.files_in(self._folder),
            )
        )

    def _write(self, manifest: Manifest) -> None:
        """Put a manifest into the folder; what loaded it before is ended."""
        self.manifest = manifest
        deployment.write(self._folder, manifest)
        self._prover.forget()

    def _prove(self) -> None:
        """Prove every shape; one between that is not proven is not served."""
        between_draws = draws_between(sum(shape.is_between for shape in self.manifest.shapes))
        shapes = []
        for shape in self.manifest.shapes:
            if shape.runtime is not None:
                wanted = between_draws if shape.is_between else self._asked.draws
                proof = self._proof(self._workload(shape), shape, wanted)
                if proof.failure and shape.is_between:
                    continue
                if proof.failure:
                    self.failures[self._workload(shape), shape.runtime] = proof.failure
                shape = replace(
                    shape,
                    draws=proof.draws,
                    difference=proof.difference,
                    tolerance=proof.tolerance,
                )
            shapes.append(shape)
        self._write(replace(self.manifest, shapes=tuple(shapes)))
        if not self.failures:
            padded = self._padded()
            self._write(replace(self.manifest, padding=padded))

    def _proof(self, workload: Workload, shape: Shape, wanted: int) -> Proof:
        """Compare outputs at a workload, as what serves a shape computes them."""
        precision = runtimes.get(str(shape.runtime)).computes_in(workload.precision)
        return self._prover.prove(self._folder, workload, wanted, precision)

    def _workload(self, shape: Shape) -> Workload:
        return replace(self._asked.workloads[0], length=shape.length, batch=shape.batch)

    # --- sizes between the shapes -----------------------------------------------------------------

    def _padded(self) -> Padding | None:
        """Return the padding that is proven equal between the shapes, None for none.

        Rows are added, then tokens, then both: what is not proven together is not done together.
        """
        known = {(shape.length, shape.batch) for shape in deployment.served(self.manifest.shapes)}
        batches = sorted({w.batch for w in self._asked.workloads})
        lengths = sorted({w.length for w in self._asked.workloads if w.length is not None})
        some = between(lengths, LENGTHS)
        gaps = [(n, b) for n in lengths or (None,) for b in between(batches, max(batches))]
        rows = [at for at in gaps if at not in known]
        tokens = [(n, b) for n in some for b in (batches[0], batches[-1])]
        both = [(n, b) for n in some for b in between(batches, LENGTHS)]
        if not rows and not tokens:
            return None
        try:
            padding = _axes(self._asked.workloads[0], lengths, self._prover)
            if padding is None:
                return None
            padding = self._tried(replace(padding, batch=True), rows) or padding
            if self._has_mask(padding):
                alone = self._tried(replace(padding, length=True), tokens)
                if alone is not None and both and (padding.batch or not rows):
                    alone = self._tried(replace(alone, batch=True), both)
                padding = alone or padding
        except WorkerError:
            return None  # the model cannot be asked at other sizes
        return padding if padding.batch or padding.length else None

    def _tried(self, padding: Padding, gaps: Sequence[tuple[int | None, int]]) -> Padding | None:
        """Return the padding with its proof at the gaps that it would serve, None without one."""
        self._write(replace(self.manifest, padding=padding))
        served = []
        for length, batch in gaps[:: math.ceil(len(gaps) / MOST_BETWEEN) or 1]:  # a step is not 0
            workload = replace(self._asked.workloads[0], length=length, batch=batch)
            shape = deployment.padded_to(self.manifest, self._prover.sizes(workload)[0])
            if shape is not None:
                served.append((workload, shape))
        if not served:
            return None
        for workload, shape in served:
            proof = self._proof(workload, shape, draws_between(len(served)))
            if proof.failure:
                return None
            largest = max(padding.difference, proof.difference)
            padding = replace(padding, draws=padding.draws + proof.draws, difference=largest)
        return padding

    def _has_mask(self, padding: Padding) -> bool:
        pairs = zip(self.manifest.interface.names, padding.inputs, strict=True)
        return any(name == MASK and at[1] is not None for name, at in pairs)

    # --- the gain, measured again -----------------------------------------------------------------

    def plan(self, budget_s: float) -> Plan:
        """Return the plan of the deployment beside eager, at every shape that was asked for."""
        asked = self._asked
        served = deployment.served(self.manifest.shapes)
        at = [self._workload(shape) for shape in served if not shape.is_between]
        return Plan(
            points=tuple(asked.point(w, name) for w in at for name in (REFERENCE, DEPLOYED)),
            processes=asked.processes,
            until=asked.until,
            budget_s=budget_s,
            setup_limit_s=asked.setup_limit,
            twin="none",
            deployment=self._folder,
        )

    def confirm(self, proof: Run) -> Run:
        """Take the measured gains, or note why a shape's is not confirmed.

        Returns:
            The proof, outputs judged by the tolerance of what serves each shape.
        """
        found = {m.workload: m for m in proof.measurements if m.runtime == DEPLOYED}
        shapes = []
        for shape in self.manifest.shapes:
            if shape.runtime is None or shape.is_between:
                shapes.append(shape)
                continue
            workload = self._workload(shape)
            m = found.get(workload)
            if m is not None:
                m = found[workload] = _judged(m, shape.tolerance)
            why = _unconfirmed(m)
            if m is None or why or m.ratio_to_eager is None:
                self.failures[workload, shape.runtime] = f"delivered: {why}"
                continue
            gain = triple(inverse(m.ratio_to_eager))
            shapes.append(replace(shape, gain=gain, latency_ns=triple(m.latency_ns)))
        self.manifest = replace(self.manifest, shapes=tuple(shapes))
        measurements = tuple(
            found[m.workload] if m.runtime == DEPLOYED else m for m in proof.measurements
        )
        return replace(proof, measurements=measurements)

    def finish(self, proof: Run) -> None:
        """Write what people and ``compare`` read, and put the folder in its place whole."""
        folder, output, manifest = self._folder, self._asked.output, self.manifest
        own = tuple(m for m in proof.measurements if m.runtime == DEPLOYED)
        comparing.save_baseline(replace(proof, measurements=own), folder / deployment.PROOF)
        (folder / "requirements.txt").write_text(
            deployment.requirements(manifest.packages, manifest.frameworktax), encoding="utf-8"
        )
        (folder / "README.md").write_text(readme(manifest), encoding="utf-8")
        deployment.write(folder, manifest)
        older = folder.with_suffix(REPLACED)
        check_output(output, self._asked.store)  # minutes have passed
        if output.exists():
            output.replace(older)
        try:
            folder.replace(output)
        except OSError:
            if older.exists():
                older.replace(output)
            raise
        shutil.rmtree(older, ignore_errors=True)


def _place(one: Candidate) -> str:
    return f"{configuration(one.workload.length)}/{one.runtime.replace('@', '-')}"


def _by_place(winners: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    found: dict[str, list[Candidate]] = {}
    for one in winners:
        found.setdefault(_place(one), []).append(one)
    return found


def _batches(place: Path) -> set[int]:
    try:
        return set(Artifact.read(place).files)
    except WorkerError:
        return set()


def _axes(workload: Workload, lengths: Sequence[int], prover: Prover) -> Padding | None:
    """Return which dimensions of inputs and outputs are batch and length; None if unclear.

    Found by drawing at another batch size, and at another length: the one dimension that was the
    one and is the other.
    """
    here = prover.sizes(workload)
    others = {"batch": replace(workload, batch=workload.batch + 1)}
    if len(lengths) > 1:
        others["length"] = replace(workload, length=lengths[-1])
    found: dict[str, list[list[int | None]]] = {
        "length": [[None] * len(tensors) for tensors in here]
    }
    for axis, other in others.items():
        pair, there = (getattr(workload, axis), getattr(other, axis)), prover.sizes(other)
        if list(map(len, there)) != list(map(len, here)):
            return None  # a tensor for each sample or token
        found[axis] = [
            [_axis(small, large, pair) for small, large in zip(*sides, strict=True)]
            for sides in zip(here, there, strict=True)
        ]
    if any(UNCLEAR in tensors for sides in found.values() for tensors in sides):
        return None
    inputs, outputs = (
        tuple(zip(batch, length, strict=True))
        for batch, length in zip(found["batch"], found["length"], strict=True)
    )
    return Padding(inputs=inputs, outputs=outputs)


def _axis(small: Sequence[int], large: Sequence[int], pair: tuple[int, int]) -> int | None:
    changed = [at for at, (a, b) in enumerate(zip(small, large, strict=False)) if a != b]
    if len(small) != len(large) or len(changed) > 1:
        return UNCLEAR
    if not changed:
        return None
    return changed[0] if (small[changed[0]], large[changed[0]]) == pair else UNCLEAR


def _judged(m: Measurement, tolerance: float | None) -> Measurement:
    found = m.parity.max_relative_difference if m.parity is not None else None
    if m.parity is None or found is None or tolerance is None:
        return m
    verdict = found <= tolerance
    return replace(m, parity=replace(m.parity, tolerance=tolerance, within_tolerance=verdict))


def _unconfirmed(m: Measurement | None) -> str:
    if m is None or m.status != "ok":
        return f"not measured: {m.reason if m else 'left out'}"
    if not proven(m.parity):
        return difference(m.parity)
    if m.ratio_to_eager is None:
        return "too few blocks to compare it with eager; give a longer --time-budget"
    gain = inverse(m.ratio_to_eager)
    if gain.low > 1:
        return ""
    why = f"its gain is not proven: {times(gain.value)} ({gain.low:.2f} to {gain.high:.2f})"
    return f"{why}; give a longer --time-budget" if gain.high > 1 else why


# --- the proof ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proof:
    """What the comparison of a shape found.

    Attributes:
        draws: that proved something.
        difference: the largest, as a share of the largest output.
        tolerance: of the parity rule.
        failure: why outputs are not proven equal; empty where they are.
    """

    draws: int
    difference: float
    tolerance: float
    failure: str = ""


class Prover:
    """The two processes; that with the model exports as well. They are ended with the context.

    Args:
        target: device, precision and threads.
        live: file of a sent module; None for a model with a name.
        scratch: folder for what is exchanged.
        limit_s: of each step.
    """

    def __init__(self, target: Target, live: str | None, scratch: Path, limit_s: float) -> None:
        self._target, self._live, self._scratch = target, live, scratch
        self._limit_s = limit_s
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self.rest()

    def _worker(self, label: str, *, fresh: bool = False) -> Worker:
        worker = self._workers.get(label)
        if worker is None or fresh or not worker.alive:
            if worker is not None:
                worker.kill()
            variables = host.worker_environment(self._target.threads)
            variables["TMPDIR"] = str(self._scratch)
            worker = self._workers[label] = Worker(label, environment=variables)
        return worker

    def export(self, workload: Workload, runtime: str, batches: Sequence[int], to: Path) -> None:
        """Export a model for a runtime into a folder; where that fails, again in a fresh process.

        Raises:
            WorkerError: it failed, crashed or took too long.
        """

        def prepare(worker: Worker) -> None:
            worker.request(
                Server.prepare,
                self._limit_s,
                workload=workload,
                runtime=runtime,
                target=self._target,
                folder=str(to),
                batches=tuple(batches),
                live=self._live,
            )

        try:
            prepare(self._worker("model"))
        except WorkerError as error:
            if error.status == "timeout":
                raise
            prepare(self._worker("model", fresh=True))

    def interface(self, workload: Workload) -> tuple[Interface, tuple[tuple[int, ...], ...]]:
        """Return how the module is called, and the sizes of its inputs at the workload's batch."""
        drawn = self._draw(workload, 0)
        return Interface(**drawn.interface), drawn.sizes

    def sizes(
        self, workload: Workload
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Return the sizes of the inputs and of eager's outputs at a shape."""
        drawn = self._draw(workload, 0)
        outputs = parity.read_outputs(self._path("outputs"))
        return drawn.sizes, tuple(tuple(array.shape) for array in outputs)

    def prove(
        self, folder: Path, workload: Workload, wanted: int = DRAWS, precision: str = "float32"
    ) -> Proof:
        """Compare outputs at one shape over drawn inputs; stops at the first that differ.

        Args:
            folder: of the deployment.
            workload: the shape.
            wanted: inputs that prove something.
            precision: what serves the shape computes in.
        """
        proven, largest = 0, 0.0
        tolerance = parity.TOLERANCE[precision]
        for number in range(TRIES * wanted):
            try:
                self._draw(workload, number)
                self._serve(folder, number)
            except WorkerError as error:
                return Proof(proven, largest, tolerance, f"input {number + 1}: {error}")
            outputs = [parity.read_outputs(self._path(name)) for name in ("outputs", "served")]
            found = parity.compare(outputs[0], outputs[1], precision)
            tolerance = found.tolerance
            if found.within_tolerance is False:
                why = found.reason or f"differ at {found.worst}"
                failure = f"input {number + 1} of {wanted}: outputs {why}"
                return Proof(proven, largest, tolerance, failure)
            if found.within_tolerance:
                proven += 1
                largest = max(largest, found.max_relative_difference or 0.0)
            if proven == wanted:
                return Proof(proven, largest, tolerance)
        failure = (
            f"only {proven} of {TRIES * wanted} inputs gave outputs of eager that prove anything"
        )
        return Proof(proven, largest, tolerance, failure)

    def rest(self) -> None:
        """End the processes: nothing is to run beside what is timed; a later step starts anew."""
        for worker in self._workers.values():
            worker.kill()
        self._workers.clear()

    def forget(self) -> None:
        """End the process that serves: what it loaded is about to change."""
        worker = self._workers.pop("serving", None)
        if worker is not None:
            worker.kill()

    def _draw(self, workload: Workload, number: int) -> Drawn:
        return self._worker("model").request(
            Server.draw,
            self._limit_s,
            workload=workload,
            device=self._target.device,
            number=number,
            inputs=str(self._path("inputs")),
            outputs=str(self._path("outputs")),
            live=self._live,
        )

    def _serve(self, folder: Path, number: int) -> None:
        self._worker("serving").request(
            Server.serve,
            self._limit_s,
            folder=str(folder),
            inputs=str(self._path("inputs")),
            outputs=str(self._path("served")),
            on_torch=number % 4 != 3,
        )

    def _path(self, name: str) -> Path:
        return self._scratch / f"{name}.npz"


def between(sizes: Sequence[int], most: int = MOST_BETWEEN) -> list[int]:
    """Return sizes inside the range of those given, at most so many, spread."""
    inside = [n for n in range(min(sizes, default=0), max(sizes, default=0)) if n not in sizes]
    if len(inside) <= most:
        return inside
    step = len(inside) / most
    return [inside[int(i * step)] for i in range(most)]


def draws_between(count: int) -> int:
    """Return how many inputs to draw for each of so many shapes between."""
    return max(LEAST_BETWEEN, math.ceil(DRAWS / count)) if count else 0
