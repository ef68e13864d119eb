"""The executor of a Ray cluster: one job at a time on each host, its records written as they come.

A node runs what the local executor runs (``ray_node``); this is the driver's side: which node is
free, what is new, what was lost or is late. Lines of a node's shard become lines of a shard here;
whether they are records is for readers to say. Only ``RayCluster`` asks anything of Ray.
"""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frameworktax import models
from frameworktax.errors import UsageError, WorkerError, needs
from frameworktax.measure.reporter import Reporter
from frameworktax.records import Point
from frameworktax.store import Writer
from frameworktax.sweep.executor import Done, Job, Platform, limit_s, lost
from frameworktax.sweep.ray_node import News, NodeHost, versions

WAIT_S = 1.0
NODES_EVERY_S = 2.0
"""How often the cluster is asked for its nodes while jobs run."""
BUSY_S = 30.0
"""A node that has not begun after this long is busy with something else; it is said once."""
ENDING_S = 25.0
"""How long fetching what is new may take at the end."""
CONNECT_S = 5.0
ANSWER_S = 60.0
LABELS = ("frameworktax", "ray.io/accelerator-type")
"""Labels of a node whose values name it in a study."""
HOW = (
    "start one: ray start --head --labels frameworktax=NAME, on each further machine ray start "
    "--address HOST:6379 --labels frameworktax=NAME; see docs/cluster.md"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a cluster.

    Attributes:
        id: Ray's.
        address: nodes of one address are on one host, and take turns.
        labels: what a study may call it beside ``local`` and its devices.
        cpus: how many it offers to Ray.
        gpus: likewise.
        memory_bytes: likewise, 0 if it does not say.
    """

    id: str
    address: str
    labels: tuple[str, ...]
    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int = 0

    def __str__(self) -> str:
        return f"node {self.address} ({', '.join(self.labels) or self.id[:8]})"

    @property
    def names(self) -> tuple[str, ...]:
        """Every label that a study may use for it."""
        return ("local", "cpu", *(("cuda:0",) if self.gpus else ()), *self.labels)


class RemoteJob:
    """A job on a node, and what has arrived of it.

    Attributes:
        since: when it was given to the node (``time.monotonic``).
        began: when the first of its shard came, None before that.
        taken: bytes so far.
    """

    def __init__(self, folder: Path, job: Job, code: Mapping[str, str], node: Node) -> None:
        self.job, self.code, self.node = job, code, node
        self.since = time.monotonic()
        self.began: float | None = None
        self.taken = 0
        self._folder = folder
        self._writer: Writer | None = None

    def feed(self, news: News) -> None:
        """Write the lines that came; the first of all is a shard's header.

        Raises:
            StoreError: they cannot be written here.
        """
        self.taken += len(news.data)
        lines = news.data
        if lines and self._writer is None:
            self.began = time.monotonic()
            self._writer = Writer(self._folder, news.session)
            lines = lines.partition(b"\n")[2]
        if lines and self._writer is not None:
            self._writer.append(lines.removesuffix(b"\n"))

    def done(self, done: Done) -> Done:
        """Close the shard and return how the job ended here."""
        self.close()
        error = done.error
        if isinstance(error, WorkerError):
            error = WorkerError(error.status, f"{self.node}: {error}")
        session = self._writer.path.stem if self._writer is not None else ""
        return replace(done, job=self.job, session=session, error=error)

    def close(self) -> None:
        """Close the shard."""
        if self._writer is not None:
            self._writer.close()


class RayExecutor:
    """Runs jobs on the nodes of a cluster: a ``RayCluster``, or what tests have in its place."""

    def __init__(
        self, folder: Path, cluster: Any, reporter: Reporter, command: Sequence[str]
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._reporter = reporter
        self._command = tuple(command)
        self._has_measured = False
        self._unfit: dict[str, str] = {}
        """Node → why it is left out."""
        self._nodes: list[Node] = []
        self._asked_at = float("-inf")
        self._waiting: deque[tuple[Job, Mapping[str, str]]] = deque()
        """Jobs, each with the user's own models in it."""
        self._hosts: dict[str, Any] = {}
        self._running: dict[Any, RemoteJob] = {}
        """By the promise of what is new of them."""
        self._ended: deque[Done] = deque()

    # --- the five methods ---------------------------------------------------------------------

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
        """Take a job.

        Raises:
            UsageError: its model cannot be sent to a node.
        """
        self._waiting.append((job, shipped(job.points)))

    def completed(self, wait_s: float | None = None) -> Iterator[Done]:
        """Yield jobs as they end, or are lost.

        Raises:
            StoreError: nothing can be written here any more.
        """
        since = time.monotonic()
        while True:
            while self._ended:
                yield self._ended.popleft()
                since = time.monotonic()
            if not (self._waiting or self._running):
                return
            left_s = WAIT_S if wait_s is None else wait_s - (time.monotonic() - since)
            if left_s <= 0:
                return
            self._place()
            self._listen(min(WAIT_S, left_s))

    def cancel(self, name: str) -> bool:
        """Take back a job that has not begun: it waits here, or for its node to be free."""
        for waiting in self._waiting:
            if waiting[0].name == name:
                self._waiting.remove(waiting)
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
            while self._running and time.monotonic() < until:
                for promise in self._cluster.ready(list(self._running), WAIT_S):
                    one = self._running.pop(promise)
                    self._feed(one, promise)
                    one.close()
            stopping = [self._cluster.ask(host, "stop") for host in self._hosts.values()]
            while stopping and time.monotonic() < until:
                ready = self._cluster.ready(stopping, WAIT_S)
                stopping = [promise for promise in stopping if promise not in ready]
        finally:
            for one in self._running.values():
                one.close()
            for host in self._hosts.values():
                self._cluster.drop(host)
            self._running.clear()
            self._hosts.clear()
            self._ended.clear()
            self._cluster.close()

    # --- jobs ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask the cluster for its nodes, every few seconds."""
        if time.monotonic() - self._asked_at >= NODES_EVERY_S:
            self._nodes = [one for one in self._cluster.nodes() if one.id not in self._unfit]
            self._asked_at = time.monotonic()

    def _place(self) -> None:
        """Begin waiting jobs on nodes that are free."""
        self._look()
        busy = {one.node.address for one in self._running.values()}
        for waiting in list(self._waiting):
            job, code = waiting
            fitting = [node for node in self._nodes if job.platform in node.names]
            free = next((node for node in fitting if node.address not in busy), None)
            if free is not None:
                busy.add(free.address)
                self._waiting.remove(waiting)
                if free.id not in self._hosts:
                    self._hosts[free.id] = self._cluster.host(free, self._command, versions())
                self._cluster.ask(self._hosts[free.id], "begin", job, code)
                self._take(RemoteJob(self._folder, job, code, free))

    def _take(self, one: RemoteJob) -> None:
        promise = self._cluster.ask(self._hosts[one.node.id], "take", one.taken)
        self._running[promise] = one

    def _listen(self, wait_s: float) -> None:
        """Fetch what is new."""
        if not self._running:
            time.sleep(wait_s)
        for promise in self._cluster.ready(list(self._running), wait_s):
            one = self._running.pop(promise)
            done = self._feed(one, promise)
            if done is None:
                self._take(one)
            elif one.began is None and isinstance(done.error, WorkerError):
                # it could not begin there: the job was not lost, and waits for another node
                self._waiting.appendleft((one.job, one.code))
                self._unfit[one.node.id] = f"{one.node} {done.error}"
                self._reporter.say(f"left out: {self._unfit[one.node.id]}")
                self._let_go(one)
            else:
                self._ended.append(one.done(done))
        for one in self._running.values():
            if one.began is None and time.monotonic() - one.since > BUSY_S:
                one.since = float("inf")  # once
                self._reporter.say(f"waiting for {one.node}, which is busy")

    def _feed(self, one: RemoteJob, promise: Any) -> Done | None:
        """Take what is new of a job; return its end, None if there may be more of it."""
        try:
            news: News = self._cluster.answer(promise)
        except LostError as error:
            self._let_go(one)
            return lost(one.job, "crashed", f"was lost: {error}")
        for method, text in news.notes:
            getattr(self._reporter, method)(f"{one.node}: {text}")
        one.feed(news)
        self._has_measured |= one.began is not None
        late_s = limit_s(one.job)
        if news.done is None and one.began and time.monotonic() - one.began > late_s:
            self._let_go(one)
            return lost(one.job, "timeout", f"ended after {late_s:.0f} s")
        return news.done

    def _let_go(self, one: RemoteJob) -> None:
        """End a host; what has arrived of its job stays."""
        one.close()
        if (host := self._hosts.pop(one.node.id, None)) is not None:
            self._cluster.drop(host)
        self._asked_at = float("-inf")


def _platform(label: str, nodes: Sequence[Node]) -> Platform:
    device = "cuda:0" if all(node.gpus for node in nodes) else "cpu"
    if label in ("cpu", "cuda:0"):
        device = label
    elif label != "local":  # elsewhere is elsewhere: its points are points of their own
        device = f"{device}@{label}"
    hosts = sorted({node.address for node in nodes})
    return Platform(
        label=label,
        device=device,
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
        where = Path(name.rpartition(":")[0])
        if not models.is_user_model(name) or not (where.suffix == ".py" or "/" in str(where)):
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


class LostError(Exception):
    """An actor on a node is gone; the message says why, as far as Ray knows."""


class RayCluster:
    """A cluster that runs; nothing of it is started or stopped here."""

    def __init__(self, address: str | None = None) -> None:
        """Connect to ``ray://HOST:PORT``; None is the cluster that this host belongs to.

        Raises:
            UsageError: Ray is not installed, there is no cluster, or it is of another version.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        with needs("--engine ray needs Ray", "ray"):
            import ray
        self._ray = ray
        self._connected = not ray.is_initialized()  # a caller's own connection stays the caller's
        if not self._connected:
            return
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

    def nodes(self) -> Sequence[Node]:
        """Return the nodes that are alive."""
        return [
            Node(
                id=node["NodeID"],
                address=node["NodeManagerAddress"],
                labels=tuple(node["Labels"][key] for key in LABELS if node["Labels"].get(key)),
                cpus=node["Resources"].get("CPU", 0.0),
                gpus=node["Resources"].get("GPU", 0.0),
                memory_bytes=int(node["Resources"].get("memory", 0)),
            )
            for node in self._ray.nodes()
            if node["Alive"]
        ]

    def host(self, node: Node, *arguments: Any) -> Any:
        """Start a ``NodeHost`` that holds the whole node; it may wait until the node is free."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        kind = self._ray.remote(NodeHost)
        return kind.options(
            num_cpus=node.cpus,
            num_gpus=node.gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        ).remote(*arguments)

    def ask(self, host: Any, method: str, *arguments: Any) -> Any:
        """Call a method of a host; return a promise of its answer."""
        return getattr(host, method).remote(*arguments)

    def ready(self, promises: Sequence[Any], wait_s: float) -> Sequence[Any]:
        """Return a promise that has an answer, waiting for one; none after ``wait_s``."""
        return list(self._ray.wait(promises, timeout=wait_s)[0]) if promises else []

    def answer(self, promise: Any) -> Any:
        """Return the answer of a promise that is ready; raises LostError."""
        try:
            return self._ray.get(promise, timeout=ANSWER_S)
        except self._ray.exceptions.RayError as error:
            raise LostError(_first_line(error)) from error

    def drop(self, host: Any) -> None:
        """End a host at once, with what it runs."""
        self._ray.kill(host, no_restart=True)

    def close(self) -> None:
        """Let go of the cluster."""
        if self._connected:
            self._ray.shutdown()


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
