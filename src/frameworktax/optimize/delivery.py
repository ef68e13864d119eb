"""From winners to a folder: exported, described, proven, and put in its place whole.

The proof asks the delivered artifact as its user asks it: does it compute what eager computes? One
fresh process builds the model, draws inputs and runs eager on them; another loads the deployment,
of which it knows the folder alone, and is called with the same inputs, as torch's tensors and every
fourth time as numpy's arrays, and compares the outputs.
"""

from __future__ import annotations

import errno
import math
import os
import platform
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from frameworktax import comparing, host, models, runtimes
from frameworktax.errors import UsageError, WorkerError
from frameworktax.host.cache import holding, remove_of_dead
from frameworktax.measure import parity
from frameworktax.measure.process import Worker
from frameworktax.measure.protocol import Drawn
from frameworktax.measure.template import Templates
from frameworktax.measure.worker import Server
from frameworktax.models.ragged import MASK
from frameworktax.models.user import Live, send
from frameworktax.optimize.blocks import readme, triple
from frameworktax.optimize.race import Candidate, by_shape, candidate
from frameworktax.records import DEPLOYED, REFERENCE, Measurement, Parity, Point, Run, Workload
from frameworktax.report.words import factor
from frameworktax.runtimes import deployment
from frameworktax.runtimes.artifacts import FOLDER, Artifact
from frameworktax.runtimes.base import Target
from frameworktax.runtimes.deployment import Interface, Manifest, Padding, Shape, Sizes, shape_name
from frameworktax.version import __version__

if TYPE_CHECKING:
    from frameworktax.optimize.run import Asked

LENGTHS = 4
"""Lengths between those asked for that padding is proven at; each builds the model."""
REPLACED = ".replaced"
"""The end of the name under which an older deployment waits until the new one is in its place."""
LEAST_BYTES = 1 << 20
"""With less than this free, an export that crashed did so because the disk is full."""
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
DRAWS = 32
"""Inputs over which outputs are compared: the model's own, edge values and random ones."""
LEAST_BETWEEN = 4
"""Draws of a shape between those that were asked for; all of them together have ``DRAWS``."""
MOST_BETWEEN = 16
"""Such shapes that one proof is of."""
PADDED = ("batch", "length", "together")
"""Along what inputs are padded, each with a proof of its own; both at once where both are."""
TRIES = 2
"""How many times the wanted number is drawn before eager's outputs are said to prove nothing."""


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
    if folder.is_dir() and any(folder.iterdir()) and not deployment.is_deployment(folder):
        raise UsageError(f"{folder} holds something that is no deployment; name another with -o")


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``output``, in which a ``Delivery`` is made.

    While it is there no other run makes the same ``output``.

    Raises:
        UsageError: nothing can be written there, or another run makes the same.
    """
    folder = output.parent.resolve() / f".{output.name}.partial"
    older = folder.with_suffix(REPLACED)
    with ExitStack() as ends:
        with writing(output):
            output.parent.mkdir(parents=True, exist_ok=True)
            remove_of_dead(folder)
            try:
                folder.mkdir(mode=0o755)
            except FileExistsError as error:
                raise UsageError(
                    f"another run makes {output}; wait until it ends, name another with -o, or "
                    f"remove {folder} where no run is left"
                ) from error
            ends.enter_context(holding(folder))
            if older.exists() and not output.exists():  # a run was killed between two moves
                older.replace(output)
            shutil.rmtree(older, ignore_errors=True)
        yield folder


@contextmanager
def writing(output: Path) -> Iterator[None]:
    """Say in one line why nothing can be written, the disk being full for one.

    Raises:
        UsageError: that.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise UsageError(
            f"cannot write {output}: {error.strerror}; free space, or name another with -o; "
            "--resume goes on with what was measured"
        ) from error


class Delivery:
    """A deployment in the making: exported, described, proven, and put in its place whole.

    Attributes:
        manifest: of the last attempt.
        failures: of the last attempt, (shape, runtime) → why it cannot be delivered.
        measured: what was delivered, as it was measured.

    Args:
        asked: what is to be optimised.
        folder: of the deployment until it is in its place; empty.
        prover: builds the model, exports it and compares outputs.
    """

    manifest: Manifest

    def __init__(self, asked: Asked, folder: Path, prover: Prover) -> None:
        self._asked, self._folder, self._prover = asked, folder, prover
        self.failures: dict[tuple[Workload, str], str] = {}
        self.measured: list[Candidate] = []

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
                interface, sizes, _ = self._prover.look(workload)
            except WorkerError as error:
                raise unfit(workload, error) from error
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
            self._describe(interfaces[0], shapes, self._notes(winners.values()))
            self._prove()

    def _export(self, winners: Collection[Candidate]) -> Iterator[tuple[tuple[Workload, str], str]]:
        """Export winners once a length, for all batch sizes won; yield what fails, and why."""
        wanted = _by_place(winners)
        for there in [path for path in self._folder.glob("*/*") if path.is_dir()]:
            ones = wanted.get(there.relative_to(self._folder).as_posix(), ())
            if set(Artifact.read(there).files) != {one.workload.batch for one in ones}:
                shutil.rmtree(there)
        for name, ones in wanted.items():
            to = self._folder / name
            if to.exists():
                continue
            try:
                batches = sorted(one.workload.batch for one in ones)
                self._prover.export(ones[0].workload, ones[0].runtime, batches, to)
            except WorkerError as error:
                full = os.strerror(errno.ENOSPC)
                if full in str(error) or shutil.disk_usage(self._folder).free < LEAST_BYTES:
                    raise OSError(errno.ENOSPC, full) from error
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
                        sizes=self._prover.look(workload)[1],
                        runtime=ones[0].runtime,
                        folder=place,
                        is_between=True,
                    )

    def _notes(self, winners: Iterable[Candidate]) -> list[str]:
        """Return what the model and its exports have to say, as that a precision was cast."""
        read = [Artifact.read(self._folder / place) for place in _by_place(winners)]
        return list(dict.fromkeys(text for artifact in read for _, text in artifact.notes))

    def _describe(
        self, interface: Interface, shapes: Sequence[Shape], notes: Sequence[str] = ()
    ) -> None:
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
                builds=deployment.builds(sorted(needed)),
                device=asked.device,
                precision=asked.target.precision,
                threads=asked.threads,
                aim=asked.aim,
                notes=notes,
                interface=interface,
                shapes=tuple(shapes),
                files=deployment.files_in(self._folder),
            )
        )

    def _write(self, manifest: Manifest) -> None:
        """Put a manifest into the folder; what loaded it before is ended."""
        self.manifest = manifest
        deployment.write(self._folder, manifest)
        self._prover.rest("serving")

    def _prove(self) -> None:
        """Prove every shape; one between that is not proven is not served."""
        between_draws = draws_between(sum(shape.is_between for shape in self.manifest.shapes))
        shapes = []
        for shape in self.manifest.shapes:
            if shape.runtime is not None:
                wanted = between_draws if shape.is_between else DRAWS
                proof = self._proof(self._workload(shape), shape, wanted)
                if proof.failure and shape.is_between:
                    continue
                if proof.failure:
                    self.failures[self._workload(shape), shape.runtime] = proof.failure
                shape = replace(
                    shape, draws=proof.draws, difference=proof.difference, tolerance=proof.tolerance
                )
            shapes.append(shape)
        self._write(replace(self.manifest, shapes=tuple(shapes)))
        if not self.failures:
            self._pad()

    def _proof(self, workload: Workload, shape: Shape, wanted: int) -> Proof:
        """Compare outputs at a workload, as what serves a shape computes them."""
        precision = runtimes.get(str(shape.runtime)).computes_in(workload.precision)
        output = self.manifest.interface.output
        return self._prover.prove(self._folder, workload, output, wanted, precision)

    def _workload(self, shape: Shape) -> Workload:
        return replace(self._asked.workloads[0], length=shape.length, batch=shape.batch)

    # --- sizes between the shapes -----------------------------------------------------------------

    def _pad(self) -> None:
        """Have sizes between the shapes padded where that is proven equal; else note why not."""
        first = self._asked.workloads[0]
        batches = sorted({w.batch for w in self._asked.workloads})
        lengths = sorted({w.length for w in self._asked.workloads if w.length is not None})
        if not between(batches) and not between(lengths):
            return
        try:
            axes = _axes(first, lengths, self._prover)
        except WorkerError as error:
            self._write(replace(self.manifest, unpadded=str(error)))
            return
        names = self.manifest.interface.names
        masked = MASK in names and axes.inputs[names.index(MASK)][1] is not None
        known = {(shape.length, shape.batch) for shape in self.manifest.shapes}
        gaps: dict[str, list[Workload]] = {name: [] for name in PADDED}
        for length in [*lengths, *(between(lengths, LENGTHS) if masked else ())] or [None]:
            others = between([*batches, *(batch for at, batch in known if at == length)])
            for batch in [*batches, *others]:
                if (length, batch) not in known:
                    along = [batch not in batches, bool(lengths) and length not in lengths]
                    name = PADDED[2 if all(along) else along.index(True)]
                    gaps[name].append(replace(first, length=length, batch=batch))
        # All of it is tried; what is not proven is taken back.
        everything = replace(axes, batch=True, length=True, together=True)
        self._write(replace(self.manifest, padding=everything))
        padding, why = axes, list[str]()
        is_proven: dict[str, Any] = dict.fromkeys(PADDED, False)
        for name, some in gaps.items():
            if some and (name != PADDED[2] or not why):
                try:
                    padding, is_proven[name] = self._proven_padding(padding, some), True
                except WorkerError as error:
                    why.append(f"{name}: {error}")
        found = replace(padding, **is_proven) if padding.draws else None
        self._write(replace(self.manifest, padding=found, unpadded="; ".join(why) or None))

    def _proven_padding(self, padding: Padding, gaps: Sequence[Workload]) -> Padding:
        """Return the padding with the proof at the gaps that it would serve.

        Raises:
            WorkerError: outputs differ at one, or it would serve none.
        """
        served = [
            (workload, shape)
            for workload in gaps[:: math.ceil(len(gaps) / MOST_BETWEEN)]
            if (shape := deployment.padded_to(self.manifest, self._prover.look(workload)[1]))
        ]
        if not served:
            raise WorkerError("unavailable", "no shape that is served is the next larger one")
        for workload, shape in served:
            proof = self._proof(workload, shape, draws_between(len(served)))
            if proof.failure:
                raise WorkerError("failed", f"{shape_name(workload)}: {proof.failure}")
            largest = max(padding.difference, proof.difference)
            padding = replace(padding, draws=padding.draws + proof.draws, difference=largest)
        return padding

    # --- the gain, measured again -----------------------------------------------------------------

    def points(self) -> tuple[Point, ...]:
        """Return the deployment beside eager, at every shape that was asked for."""
        served = deployment.served(self.manifest.shapes)
        at = [self._workload(shape) for shape in served if not shape.is_between]
        return tuple(self._asked.point(w, name) for w in at for name in (REFERENCE, DEPLOYED))

    def confirm(self, proof: Run) -> Run:
        """Take the measured gains, or note why a shape's is not confirmed.

        Returns:
            The proof, outputs judged by the tolerance of what serves each shape.
        """
        tolerances = {self._workload(shape): shape.tolerance for shape in self.manifest.shapes}
        measurements = tuple(
            _judged(m, tolerances[m.workload]) if m.runtime == DEPLOYED else m
            for m in proof.measurements
        )
        found = {m.workload: m for m in measurements if m.runtime == DEPLOYED}
        shapes = []
        for shape in self.manifest.shapes:
            if shape.runtime is not None and not shape.is_between:
                workload = self._workload(shape)
                one = candidate(workload, shape.runtime, found.get(workload), {})
                self.measured.append(one)
                if why := unconfirmed(one):
                    self.failures[workload, shape.runtime] = f"delivered: {why}"
                latency = one.measured.latency_ns if one.measured is not None else None
                shape = replace(shape, gain=triple(one.gain), latency_ns=triple(latency))
            shapes.append(shape)
        self.manifest = replace(self.manifest, shapes=tuple(shapes))
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
        self.manifest = replace(manifest, files=deployment.files_in(folder))
        deployment.write(folder, self.manifest)
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


def unfit(workload: Workload, error: WorkerError) -> UsageError:
    """Return what is raised where no deployment can stand in for the module."""
    return UsageError(f"{workload.model} cannot be delivered: {error}")


def _place(one: Candidate) -> str:
    return f"{deployment.configuration(one.workload.length)}/{one.runtime.replace('@', '-')}"


def _by_place(winners: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    found: dict[str, list[Candidate]] = {}
    for one in winners:
        found.setdefault(_place(one), []).append(one)
    return found


def _axes(workload: Workload, lengths: Sequence[int], prover: Prover) -> Padding:
    """Return which dimensions of inputs and outputs are batch and length.

    Found by drawing at another batch size, and at another length: the one dimension that was the
    one and is the other.

    Raises:
        WorkerError: they are not clear.
    """
    here = prover.look(workload)[1:]

    def axes(other: Workload, pair: tuple[int, int]) -> list[list[int | None]]:
        there = prover.look(other)[1:]
        if list(map(len, there)) != list(map(len, here)):
            raise WorkerError("unavailable", "it has a tensor for each sample or token")
        return [
            [_axis(small, large, pair) for small, large in zip(*sides, strict=True)]
            for sides in zip(here, there, strict=True)
        ]

    more = workload.batch + 1
    batch = axes(replace(workload, batch=more), (workload.batch, more))
    length: list[list[int | None]] = [[None] * len(tensors) for tensors in here]
    if len(lengths) > 1:
        length = axes(replace(workload, length=lengths[-1]), (lengths[0], lengths[-1]))
    inputs, outputs = (tuple(zip(b, n, strict=True)) for b, n in zip(batch, length, strict=True))
    return Padding(inputs=inputs, outputs=outputs)


def _axis(small: Sequence[int], large: Sequence[int], pair: tuple[int, int]) -> int | None:
    """Return the dimension that is the one and is the other; None where nothing changed.

    Raises:
        WorkerError: more than one did, or one by another amount.
    """
    changed = [at for at, both in enumerate(zip(small, large, strict=False)) if len({*both}) > 1]
    if len(small) == len(large) and not changed:
        return None
    if len(small) != len(large) or [(small[at], large[at]) for at in changed] != [pair]:
        raise WorkerError("unavailable", "which dimension is batch or length is not clear")
    return changed[0]


def _judged(m: Measurement, tolerance: float | None) -> Measurement:
    """Return it judged by the tolerance of what serves, where that is another one."""
    found = m.parity
    share = found.max_relative_difference if found is not None else None
    if found is None or found.within_tolerance is None or share is None:
        return m
    if tolerance is None or tolerance == found.tolerance:  # whole numbers may differ within it
        return m
    judged = replace(found, tolerance=tolerance, within_tolerance=share <= tolerance)
    return replace(m, parity=judged)


def unconfirmed(one: Candidate) -> str:
    """Return why what was delivered is not proven faster than eager; empty where it is."""
    if one.gain is None or one.gain.low > 1:
        return one.reason
    why = f"its gain is not proven: {factor(one.gain)}"
    return f"{why}; give a longer --time-budget" if one.gain.high > 1 else why


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

    They are forked of templates, as measuring processes are; that which serves has torch, as who
    calls it with tensors has, and nothing of the model's.

    Args:
        target: device, precision and threads.
        live: a module that is sent; None for a model with a name.
        scratch: folder for what is exchanged.
        limit_s: of each step.
        templates: which fork them.
    """

    def __init__(
        self,
        target: Target,
        live: Live | None,
        scratch: Path,
        limit_s: float,
        templates: Templates,
    ) -> None:
        self._target, self._scratch, self._limit_s = target, scratch, limit_s
        self._live = str(scratch / "live.pkl") if live is not None else None
        if live is not None:
            send(live, scratch / "live.pkl")
        self._inputs, self._outputs = str(scratch / "inputs.npz"), str(scratch / "outputs.npz")
        self._templates = templates
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()

    def _worker(self, label: str, libraries: tuple[str, ...] = ("torch",)) -> Worker:
        worker = self._workers.get(label)
        if worker is None or not worker.alive:
            self.rest(label)
            variables = host.worker_environment(self._target.threads)
            variables["TMPDIR"] = str(self._scratch)
            worker = self._workers[label] = Worker(
                label, environment=variables, templates=self._templates, libraries=libraries
            )
        return worker

    def _with_model(self, workload: Workload) -> Worker:
        return self._worker("model", ("torch",) if self._live else models.libraries(workload))

    def export(self, workload: Workload, runtime: str, batches: Sequence[int], to: Path) -> None:
        """Export a model for a runtime into a folder, in a fresh process.

        Raises:
            WorkerError: it failed, crashed or took too long.
        """
        self.rest("model")
        self._with_model(workload).request(
            Server.prepare,
            self._limit_s,
            workload=workload,
            runtime=runtime,
            target=self._target,
            folder=str(to),
            batches=tuple(batches),
            live=self._live,
        )

    def look(self, workload: Workload) -> tuple[Interface, Sizes, Sizes]:
        """Return how the module is called, and the sizes of inputs and eager's outputs there."""
        drawn = self._draw(workload, 0)
        return Interface(**drawn.interface), drawn.sizes, drawn.made

    def prove(
        self,
        folder: Path,
        workload: Workload,
        output: Any,
        wanted: int = DRAWS,
        precision: str = "float32",
    ) -> Proof:
        """Compare outputs at one shape over drawn inputs; stops at the first that differ.

        Inputs at which the module itself raises, as where one is to be sorted, prove nothing.

        Args:
            folder: of the deployment.
            workload: the shape.
            output: the structure that the deployment returns, with values that are no tensors.
            wanted: inputs that prove something.
            precision: what serves the shape computes in.
        """
        proof = Proof(0, 0.0, parity.TOLERANCE[precision])
        raised = ""
        for number in range(TRIES * wanted):
            try:
                drawn = self._draw(workload, number)
            except WorkerError as error:
                if not number or error.status != "failed":
                    return replace(proof, failure=f"input {number + 1}: {error}")
                raised = f"; the module does not take those drawn, such as {number + 1}: {error}"
                continue
            try:
                found = self._serve(folder, number, precision)
            except WorkerError as error:
                return replace(proof, failure=f"input {number + 1}: {error}")
            if drawn.interface["output"] != output:
                why = "the module returns another structure or plain value; make that a tensor"
                return replace(proof, failure=f"input {number + 1} of {wanted}: {why}")
            if found.within_tolerance is False:
                why = found.reason or f"outputs differ at {found.worst}"
                return replace(proof, failure=f"input {number + 1} of {wanted}: {why}")
            if found.within_tolerance:
                largest = max(proof.difference, found.max_relative_difference or 0.0)
                proof = Proof(proof.draws + 1, largest, found.tolerance)
            if proof.draws == wanted:
                return proof
        why = f"of {TRIES * wanted} inputs gave outputs of eager that prove anything"
        return replace(proof, failure=f"only {proof.draws} {why}{raised}")

    def rest(self, *labels: str) -> None:
        """End both processes, or those named; a later step starts anew.

        Nothing is to run beside what is timed, and what serves has loaded what is about to change.
        """
        for label in labels or tuple(self._workers):
            if (worker := self._workers.pop(label, None)) is not None:
                worker.kill()

    def _draw(self, workload: Workload, number: int) -> Drawn:
        return self._with_model(workload).request(
            Server.draw,
            self._limit_s,
            workload=workload,
            device=self._target.device,
            number=number,
            inputs=self._inputs,
            outputs=self._outputs,
            live=self._live,
        )

    def _serve(self, folder: Path, number: int, precision: str) -> Parity:
        return self._worker("serving").request(
            Server.serve,
            self._limit_s,
            folder=str(folder),
            inputs=self._inputs,
            outputs=self._outputs,
            precision=precision,
            on_torch=number % 4 != 3,
        )


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
