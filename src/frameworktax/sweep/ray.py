"""The executor of a Ray cluster: one job at a time on each host, its records written as they come.

``RayExecutor`` is the driver's side: which node is free, what is new, what was lost or is late.
Lines of a node's shard become lines of a shard here; whether they are records is for readers to
say. ``NodeHost`` is a node's side: an actor that holds the node and runs the local executor in a
private folder, one job after the other; what its templates have imported serves the next job, too.
What is timed runs in processes that end with the actor, however that ends.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any, Literal

from frameworktax import models
from frameworktax.errors import FrameworktaxError, UsageError, WorkerError, needs
from frameworktax.host.cache import hold, remove_of_dead
from frameworktax.host.lock import host_lock
from frameworktax.measure.reporter import Reporter
from frameworktax.records import Point
from frameworktax.store import Writer
from frameworktax.sweep.executor import Done, Job, LocalExecutor, Platform, limit_s, lost
from frameworktax.version import __version__

WAIT_S = 1.0
"""How long a question waits for news: fewer questions disturb the measurement less."""
NODES_EVERY_S = 2.0
"""How often the cluster is asked for its nodes while jobs run."""
BUSY_S = 30.0
"""A node that has not begun after this long is busy with something else; it is said once."""
ENDING_S = 25.0
"""How long fetching what is new may take at the end."""
CONNECT_S = 5.0
ANSWER_S = 60.0
CHUNK_BYTES = 1 << 20
"""What one answer brings at most, up to the end of its last line."""
PREFIX = "frameworktax-node-"
SET_BY_RAY = ("PYTHONBREAKPOINT", "PYTHONUNBUFFERED", "OMP_NUM_THREADS")
LABELS = ("frameworktax", "ray.io/accelerator-type")
"""Labels of a node whose values name it in a study."""
HOW = (
    "start one: ray start --head --labels frameworktax=NAME, on each further machine ray start "
    "--address HOST:6379 --labels frameworktax=NAME; see docs/cluster.md"
)


# --- a node's side --------------------------------------------------------------------------------

Said = list[tuple[Literal["phase", "say"], str]]
"""Methods of ``Reporter`` that a session called, each with its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What is new of a job.

    Attributes:
        session: that it is measured in, empty before it began.
        data: whole lines of the shard, from the offset that was asked for.
        notes: what the session reported.
        done: how it ended, once nothing more follows.
    """

    session: str
    data: bytes
    notes: Said
    done: Done | None


def versions() -> dict[str, str | None]:
    """Return what must be of one version on the driver and on every node that measures."""
    torch = None
    with suppress(metadata.PackageNotFoundError):
        torch = metadata.version("torch").partition("+")[0]
    return {"frameworktax": __version__, "python": python_version(), "torch": torch}


class _Notes(Reporter):
    """Keeps what a session reports until it is fetched."""

    def __init__(self) -> None:
        self.new: Said = []

    def phase(self, text: str) -> None:
        self.new.append(("phase", text))

    def say(self, text: str) -> None:
        self.new.append(("say", text))


class NodeHost:
    """Measures on this node; every method returns at once, or within ``WAIT_S``.

    Args:
        command: recorded with each session.
        wanted: ``versions`` of the driver; with others no job begins.
    """

    def __init__(self, command: Sequence[str], wanted: Mapping[str, str | None]) -> None:
        self._command = tuple(command)
        self._wanted = wanted
        for dead in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            remove_of_dead(dead)
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # 0700
        self._held = hold(self._folder)
        os.chdir(self._folder)  # where measuring processes look for the user's own models
        for name in SET_BY_RAY:
            os.environ.pop(name, None)
        self._notes = _Notes()
        self._store = self._folder / "store"
        self._executor = LocalExecutor(self._store, "cpu", self._notes, self._command)
        # One thread as long as this lives: what a thread started ends with it.
        self._thread = ThreadPoolExecutor(1)
        self._done: Future[Done] = Future()

    def begin(self, job: Job, code: Mapping[str, str]) -> None:
        """Begin a job, with file → source of the user's own models; the one before has ended."""
        shutil.rmtree(self._store, ignore_errors=True)  # the driver has it
        self._done = self._thread.submit(self._measure, job, code)

    def take(self, at: int) -> News:
        """Return what is new, waiting a little for it; ``at`` is an offset into the shard."""
        until = time.monotonic() + WAIT_S
        while not (has_ended := self._done.done()) and time.monotonic() < until:
            time.sleep(WAIT_S / 4)
        session, data = "", b""
        for shard in self._store.glob("*.jsonl"):  # the only one
            session = shard.stem
            with shard.open("rb") as file:
                file.seek(at)
                data = file.read(CHUNK_BYTES) + file.readline()
            data = data[: data.rfind(b"\n") + 1]
        notes, self._notes.new = self._notes.new, []
        done = self._done.result() if has_ended and len(data) < CHUNK_BYTES else None
        return News(session=session, data=data, notes=notes, done=done)

    def stop(self) -> None:
        """Remove the folder; the actor is ended next, and with it what measures."""
        os.close(self._held)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _measure(self, job: Job, code: Mapping[str, str]) -> Done:
        try:
            for name, own in versions().items():
                if own != self._wanted[name]:
                    return lost(job, "crashed", f"has {name} {own}, not {self._wanted[name]}")
            for name, source in code.items():
                path = self._folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(source, encoding="utf-8")
            with host_lock(self._command, self._notes.say):
                self._raise_priority()
                return self._executor.run(job)
        except FrameworktaxError as error:  # not begun, or its records cannot be written
            return lost(job, "crashed", str(error))

    def _raise_priority(self) -> None:
        if os.getpriority(os.PRIO_PROCESS, 0) > 0:
            try:
                os.setpriority(os.PRIO_PROCESS, 0, 0)
            except PermissionError:
                self._notes.say(
                    "measures at a lower priority, as Ray starts its workers nice; "
                    "start the node with RAY_worker_niceness=0"
                )


# --- the driver's side ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a cluster.

    Attributes:
        id: Ray's.
        address: nodes of one address are on one host, and take turns.
        labels: what a study may call it beside ``local`` and its devices.
        cpus, gpus, memory_bytes: what it offers to Ray, 0 where it does not say.
    """

    id: str
    address: str
    labels: tuple[str, ...]
    cpus: float
    gpus: float
    memory_bytes: int

    def __str__(self) -> str:
        return f"node {self.address} ({', '.join(self.labels) or self.id[:8]})"

    @property
    def names(self) -> tuple[str, ...]:
        """Every label that a study may use for it."""
        return ("local", "cpu", *(("cuda:0",) if self.gpus else ()), *self.labels)


@dataclass(eq=False)
class RemoteJob:
    """A job on a node, and what has arrived of it.

    Attributes:
        since: when it was given to the node (``time.monotonic``).
        began: when the first of its shard came, None before that.
        taken: bytes so far.
        writer: of its shard here.
    """

    job: Job
    node: Node
    since: float = field(default_factory=time.monotonic)
    began: float | None = None
    taken: int = 0
    writer: Writer | None = None

    def close(self) -> None:
        """Close the shard."""
        if self.writer is not None:
            self.writer.close()


class RayExecutor:
    """Runs jobs on the nodes of a cluster that runs; nothing of it is started or stopped here.

    Args:
        folder: the store.
        address: ``ray://HOST:PORT``; None is the cluster that this host belongs to.
        reporter: receives progress.
        command: recorded with each session.

    Raises:
        UsageError: Ray is not installed, there is no cluster, or it is of another version.
    """

    def __init__(
        self, folder: Path, address: str | None, reporter: Reporter, command: Sequence[str]
    ) -> None:
        self._ray, self._is_connected = _connect(address)
        self._folder = folder
        self._reporter = reporter
        self._command = tuple(command)
        self._has_measured = False
        self._unfit: dict[str, str] = {}
        """Node → why it is left out."""
        self._nodes: list[Node] = []
        self._asked_at = float("-inf")
        self._waiting: dict[str, Job] = {}
        self._hosts: dict[str, Any] = {}
        self._running: dict[Any, RemoteJob] = {}
        """By the promise of what is new of them."""

    def platforms(self) -> Sequence[Platform]:
        """Return the labels of the nodes that are alive, without those that proved unfit.

        Raises:
            UsageError: there is no such node, and has been none that measured.
        """
        self._look()
        if not self._nodes and not self._has_measured:
            why = "; ".join(self._unfit.values()) or "it has no node"
            raise UsageError(f"the cluster offers nothing to measure on: {why}")
        found: dict[str, list[Node]] = defaultdict(list)
        for node in self._nodes:
            for label in node.names:
                found[label].append(node)
        return [_platform(label, nodes) for label, nodes in found.items()]

    def submit(self, job: Job) -> None:
        """Take a job."""
        self._waiting[job.name] = job

    def next_done(self, wait_s: float) -> Done | None:
        """Return a job that has ended or was lost.

        Raises:
            StoreError: nothing can be written here any more.
            UsageError: a job's model cannot be sent to a node.
        """
        until = time.monotonic() + wait_s
        while (self._waiting or self._running) and (left_s := until - time.monotonic()) > 0:
            self._place()
            if (done := self._listen(min(WAIT_S, left_s))) is not None:
                return done
        return None

    def cancel(self, name: str) -> bool:
        """Take back a job that has not begun: it waits here, or for its node to be free."""
        if self._waiting.pop(name, None) is not None:
            return True
        for promise, one in self._running.items():
            if one.job.name == name and one.began is None:
                del self._running[promise]
                self._let_go(one)
                return True
        return False

    def close(self) -> None:
        """End every job, fetch what it measured, and leave the cluster as it was."""
        self._waiting.clear()
        until = time.monotonic() + ENDING_S
        try:
            # a host stops once it has answered what is new
            awaited = [*self._running, *(host.stop.remote() for host in self._hosts.values())]
            while awaited and time.monotonic() < until:
                for promise in self._ray.wait(awaited, timeout=WAIT_S)[0]:
                    awaited.remove(promise)
                    if (one := self._running.pop(promise, None)) is not None:
                        self._feed(one, promise)
                        one.close()
        finally:
            for one in self._running.values():
                one.close()
            for host in self._hosts.values():
                self._ray.kill(host, no_restart=True)
            self._running.clear()
            self._hosts.clear()
            if self._is_connected:
                self._ray.shutdown()

    def _look(self) -> None:
        """Ask the cluster for its nodes, every few seconds."""
        if time.monotonic() - self._asked_at < NODES_EVERY_S:
            return
        self._nodes = [
            Node(
                id=node["NodeID"],
                address=node["NodeManagerAddress"],
                labels=tuple(node["Labels"][key] for key in LABELS if node["Labels"].get(key)),
                cpus=node["Resources"].get("CPU", 0.0),
                gpus=node["Resources"].get("GPU", 0.0),
                memory_bytes=int(node["Resources"].get("memory", 0)),
            )
            for node in self._ray.nodes()
            if node["Alive"] and node["NodeID"] not in self._unfit
        ]
        self._asked_at = time.monotonic()

    def _place(self) -> None:
        """Begin waiting jobs on nodes that are free."""
        self._look()
        busy = {one.node.address for one in self._running.values()}
        for job in list(self._waiting.values()):
            fitting = (node for node in self._nodes if job.platform in node.names)
            free = next((node for node in fitting if node.address not in busy), None)
            if free is None:
                continue
            busy.add(free.address)
            code = shipped(job.points)
            del self._waiting[job.name]
            if free.id not in self._hosts:
                self._hosts[free.id] = self._host(free)
            self._hosts[free.id].begin.remote(job, code)
            self._take(RemoteJob(job, free))

    def _host(self, node: Node) -> Any:
        """Start a ``NodeHost`` that holds the whole node; it may wait until the node is free."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        kind = self._ray.remote(NodeHost).options(
            num_cpus=node.cpus,
            num_gpus=node.gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        return kind.remote(self._command, versions())

    def _take(self, one: RemoteJob) -> None:
        self._running[self._hosts[one.node.id].take.remote(one.taken)] = one

    def _listen(self, wait_s: float) -> Done | None:
        """Fetch what is new of one job; return its end, None where it goes on."""
        if not self._running:
            time.sleep(wait_s)
            return None
        for one in self._running.values():
            if one.began is None and time.monotonic() - one.since > BUSY_S:
                one.since = float("inf")  # once
                self._reporter.say(f"waiting for {one.node}, which is busy")
        ready, _ = self._ray.wait(list(self._running), timeout=wait_s)
        if not ready:
            return None
        one = self._running.pop(ready[0])
        done = self._feed(one, ready[0])
        if done is None:
            self._take(one)
            return None
        error = done.error
        if one.began is None and isinstance(error, WorkerError):
            # it could not begin there: the job was not lost, and waits for another node
            self._waiting = {one.job.name: one.job, **self._waiting}
            self._unfit[one.node.id] = f"{one.node} {error}"
            self._reporter.say(f"left out: {self._unfit[one.node.id]}")
            self._let_go(one)
            return None
        one.close()
        if isinstance(error, WorkerError):
            error = WorkerError(error.status, f"{one.node}: {error}")
        session = one.writer.session if one.writer is not None else ""
        return replace(done, job=one.job, session=session, error=error)

    def _feed(self, one: RemoteJob, promise: Any) -> Done | None:
        """Write what is new of a job here; return its end, None if there may be more of it."""
        try:
            news: News = self._ray.get(promise, timeout=ANSWER_S)
        except self._ray.exceptions.RayError as error:
            self._let_go(one)
            return lost(one.job, "crashed", f"was lost: {_first_line(error)}")
        for method, text in news.notes:
            getattr(self._reporter, method)(f"{one.node}: {text}")
        one.taken += len(news.data)
        lines = news.data
        if lines and one.writer is None:
            one.began = time.monotonic()
            self._has_measured = True
            one.writer = Writer(self._folder, news.session)
            lines = lines.partition(b"\n")[2]  # the writer has written the header
        if lines and one.writer is not None:
            one.writer.append(lines.removesuffix(b"\n"))
        late_s = limit_s(one.job)
        if news.done is None and one.began and time.monotonic() - one.began > late_s:
            self._let_go(one)
            return lost(one.job, "timeout", f"ended after {late_s:.0f} s")
        return news.done

    def _let_go(self, one: RemoteJob) -> None:
        """End a host with what it runs; what has arrived of its job stays."""
        one.close()
        if (host := self._hosts.pop(one.node.id, None)) is not None:
            self._ray.kill(host, no_restart=True)
        self._asked_at = float("-inf")


def _platform(label: str, nodes: Sequence[Node]) -> Platform:
    has_gpus = label != "cpu" and all(node.gpus for node in nodes)
    hosts = sorted({node.address for node in nodes})
    return Platform(
        label=label,
        device="cuda:0" if has_gpus else "cpu",
        host="+".join(hosts),
        slots=len(hosts),
        memory_bytes=min(node.memory_bytes for node in nodes) or None,
    )


def shipped(points: Iterable[Point]) -> dict[str, str]:
    """Return the files of the user's own models among points, with their source.

    A file goes alone: what it imports must be installed on the nodes, as must a model that is
    named by its package. A folder, or an ONNX file, must be at one path on all of them.

    Raises:
        UsageError: a file cannot be read, or it has no place on a node.
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys(point.workload.model for point in points):
        prefix, _, data = name.partition(":")
        if prefix in ("onnx", "hf") and not Path(data).is_absolute() and Path(data).exists():
            raise UsageError(
                f"{name} is not sent to the nodes; put it at one path on all of them and here, and "
                f"name that from the root: {prefix}:/path/to/{Path(data).name}"
            )
        where = models.file_of(name)
        if where is None:
            continue
        if where.is_absolute() or ".." in where.parts:
            raise UsageError(
                f"{where} cannot be sent to a node; go to its folder and name it from there"
            )
        try:
            found[str(where)] = where.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {where} to send it to a node: {error}") from error
    return found


# --- Ray ------------------------------------------------------------------------------------------


def _connect(address: str | None) -> tuple[Any, bool]:
    """Return the module ``ray``, connected, and whether it was connected here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with needs("--engine ray needs Ray", "ray"):
        import ray
    if ray.is_initialized():
        return ray, False  # a caller's own connection stays the caller's
    where = f"at {address}" if address else "on this machine"
    if not _listens(address or os.environ.get("RAY_ADDRESS") or _noted()):
        raise UsageError(f"no Ray cluster answers {where}; {HOW}")
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises whatever its parts raise
        raise UsageError(
            f"cannot use the Ray cluster {where}: {_first_line(error)}; if it asks for a "
            "token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN; see docs/cluster.md"
        ) from error
    return ray, True


def _noted() -> str:
    """Return the address that ``ray start`` noted on this host, empty if none."""
    note = Path(os.environ.get("RAY_TMPDIR") or "/tmp", "ray", "ray_current_cluster")
    with suppress(OSError, UnicodeDecodeError):
        return note.read_text().strip()
    return ""


def _listens(address: str) -> bool:
    """Return whether a connection is accepted there: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    with suppress(OSError, ValueError, OverflowError):
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
        return True
    return False


def _first_line(error: BaseException) -> str:
    """Return the first line of what Ray says, which names the cause, without its numbers."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].partition(" lease_id=")[0][:300] if lines else type(error).__name__
