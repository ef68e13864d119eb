"""The executor of a Ray cluster: one job at a time on each host, its records written as they come.

``RayExecutor`` knows which node is free, what is new, what was lost or is late. An actor, a
``NodeHost``, holds each node; lines of its shard become lines of a shard here, and whether they are
records is for readers to say.
"""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError, WorkerError, needs
from frameworktax.measure.reporter import Reporter
from frameworktax.store import Writer
from frameworktax.store.write import FIRST
from frameworktax.sweep.executor import Done, Job, Platform, limit_s, lost
from frameworktax.sweep.grid import shipped
from frameworktax.sweep.node import WAIT_S, News, NodeHost, versions

BUSY_S = 30.0
"""A node that has not begun after this long is busy with something else; it is said once."""
ENDING_S = 25.0
"""How long fetching what is new may take at the end."""
CONNECT_S = 5.0
ANSWER_S = 60.0
NOTED = "ray/ray_current_cluster"
LABELS = ("frameworktax", "ray.io/accelerator-type")
"""Labels of a node whose values name it in a study."""
HOW = (
    "start one: ray start --head --labels frameworktax=NAME, on each further machine ray start "
    "--address HOST:6379 --labels frameworktax=NAME; see docs/cluster.md"
)


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster.

    Attributes:
        id: Ray's.
        address: nodes of one address are on one host, and take turns.
        labels: what a study may call it beside ``local`` and its devices.
        offers: to Ray, by the names ``CPU``, ``GPU`` and ``memory``.
    """

    id: str
    address: str
    labels: tuple[str, ...]
    offers: Mapping[str, float]

    def __str__(self) -> str:
        return f"node {self.address} ({', '.join(self.labels) or self.id[:8]})"

    @property
    def names(self) -> tuple[str, ...]:
        """Every label that a study may use for it."""
        return ("local", "cpu", *(("cuda:0",) if self.offers.get("GPU") else ()), *self.labels)


@dataclass(eq=False, slots=True)
class RemoteJob:
    """A job on a node, and what has arrived of it.

    Attributes:
        since: when it was given to the node, then when it began (``time.monotonic``).
        taken: bytes so far, of the header that every shard begins with, too.
        writer: of its shard here, None before it began.
    """

    job: Job
    node: Node
    since: float = field(default_factory=time.monotonic)
    taken: int = len(FIRST) + 1
    writer: Writer | None = None


@dataclass(eq=False)
class RayExecutor:
    """Runs jobs on the nodes of a cluster that runs; nothing of it is started or stopped here.

    ``address`` is ``ray://HOST:PORT``, or None for the cluster that this host belongs to.

    Raises:
        UsageError: Ray is not installed, there is no cluster, or it is of another version.
    """

    folder: Path
    address: str | None
    reporter: Reporter
    command: Sequence[str]
    _nodes: list[Node] = field(default_factory=list)
    _unfit: dict[str, str] = field(default_factory=dict)
    """Node → why it is left out."""
    _has_measured: bool = False
    _waiting: dict[str, Job] = field(default_factory=dict)
    _hosts: dict[str, Any] = field(default_factory=dict)
    """Node → its ``NodeHost``."""
    _running: dict[Any, RemoteJob] = field(default_factory=dict)
    """By the promise of what is new of them."""

    def __post_init__(self) -> None:
        self._ray, self._is_connected = _connect(self.address)

    def platforms(self) -> Sequence[Platform]:
        """Return the labels of the nodes that are alive, without those that proved unfit.

        Raises:
            UsageError: there is no such node, and has been none that measured.
        """
        self._nodes = [
            Node(
                node["NodeID"],
                node["NodeManagerAddress"],
                tuple(node["Labels"][key] for key in LABELS if node["Labels"].get(key)),
                node["Resources"],
            )
            for node in self._ray.nodes()
            if node["Alive"] and node["NodeID"] not in self._unfit
        ]
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
            if not self._running:
                time.sleep(min(WAIT_S, left_s))
                continue
            ready, _ = self._ray.wait(list(self._running), timeout=min(WAIT_S, left_s))
            if ready and (done := self._listen(ready[0])) is not None:
                return done
        return None

    def cancel(self, name: str) -> bool:
        """Take back a job that has not begun: it waits here, or for its node to be free."""
        if self._waiting.pop(name, None) is not None:
            return True
        for promise, one in self._running.items():
            if one.job.name == name and one.writer is None:
                del self._running[promise]
                self._let_go(one.node)
                return True
        return False

    def close(self) -> None:
        """End every job, fetch what it measured, and leave the cluster as it was."""
        self._waiting.clear()
        try:
            # a host stops once it has answered what is new
            awaited = [*self._running, *(host.stop.remote() for host in self._hosts.values())]
            if awaited:
                ready, _ = self._ray.wait(awaited, num_returns=len(awaited), timeout=ENDING_S)
                for promise in self._running.keys() & ready:
                    self._fetch(self._running[promise], promise)
        finally:
            for one in self._running.values():
                if one.writer is not None:
                    one.writer.close()
            for host in self._hosts.values():
                self._ray.kill(host, no_restart=True)
            self._running.clear()
            self._hosts.clear()
            if self._is_connected:
                self._ray.shutdown()

    def _place(self) -> None:
        """Begin waiting jobs on nodes that are free; name those that are busy."""
        busy = {one.node.address for one in self._running.values()}
        for job in list(self._waiting.values()):
            fitting = (node for node in self._nodes if job.platform in node.names)
            free = next((node for node in fitting if node.address not in busy), None)
            if free is None:
                continue
            busy.add(free.address)
            code = shipped(job.points)
            if free.id not in self._hosts:
                self._hosts[free.id] = self._start_host(free)
            self._hosts[free.id].begin.remote(job, code)
            self._ask(RemoteJob(self._waiting.pop(job.name), free))
        for one in self._running.values():
            if one.writer is None and time.monotonic() - one.since > BUSY_S:
                one.since = float("inf")  # once
                self.reporter.say(f"waiting for {one.node}, which is busy")

    def _start_host(self, node: Node) -> Any:
        """Start a ``NodeHost`` that holds the whole node; it may wait until the node is free."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        kind = self._ray.remote(NodeHost).options(
            num_cpus=node.offers.get("CPU", 0.0),
            num_gpus=node.offers.get("GPU", 0.0),
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        return kind.remote(tuple(self.command), versions())

    def _ask(self, one: RemoteJob) -> None:
        self._running[self._hosts[one.node.id].take.remote(one.taken)] = one

    def _listen(self, promise: Any) -> Done | None:
        """Take what is new of a job; return its end, None where it goes on or waits again."""
        one = self._running.pop(promise)
        done = self._fetch(one, promise)
        if done is None:
            self._ask(one)
            return None
        error = done.error
        if isinstance(error, WorkerError):
            self._let_go(one.node)
            if one.writer is None:
                # it could not begin there: the job was not lost, and waits for another node
                self._waiting[one.job.name] = one.job
                self._unfit[one.node.id] = f"{one.node} {error}"
                self.reporter.say(f"left out: {self._unfit[one.node.id]}")
                return None
            error = WorkerError(error.status, f"{one.node}: {error}")
        if one.writer is not None:
            one.writer.close()
        session = one.writer.session if one.writer else ""
        return replace(done, job=one.job, session=session, error=error)

    def _fetch(self, one: RemoteJob, promise: Any) -> Done | None:
        """Write what is new of a job here; return its end, None if there may be more of it."""
        try:
            news: News = self._ray.get(promise, timeout=ANSWER_S)
        except self._ray.exceptions.RayError as error:
            return lost(one.job, "crashed", f"was lost: {_first_line(error)}")
        for method, text in news.notes:
            getattr(self.reporter, method)(f"{one.node}: {text}")
        if news.data:
            if one.writer is None:
                self._has_measured = True
                one.since = time.monotonic()
                one.writer = Writer(self.folder, news.session)
            one.writer.write(news.data.removesuffix(b"\n"))
            one.taken += len(news.data)
        late_s = limit_s(one.job)
        if news.done is None and one.writer and time.monotonic() - one.since > late_s:
            return lost(one.job, "timeout", f"ended after {late_s:.0f} s")
        return news.done

    def _let_go(self, node: Node) -> None:
        """End a node's host with what it runs; the node counts again when it is found again."""
        self._ray.kill(self._hosts.pop(node.id), no_restart=True)
        self._nodes = [one for one in self._nodes if one.id != node.id]


def _platform(label: str, nodes: Sequence[Node]) -> Platform:
    has_gpus = label != "cpu" and all(node.offers.get("GPU") for node in nodes)
    hosts = sorted({node.address for node in nodes})
    return Platform(
        label=label,
        device="cuda:0" if has_gpus else "cpu",
        host="+".join(hosts),
        slots=len(hosts),
        memory_bytes=int(min(node.offers.get("memory", 0) for node in nodes)) or None,
    )


def _connect(address: str | None) -> tuple[Any, bool]:
    """Return the module ``ray``, connected, and whether it was connected here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with needs("--engine ray needs Ray", "ray"):
        import ray
    if ray.is_initialized():
        return ray, False  # a caller's own connection stays the caller's
    where = f"at {address}" if address else "on this machine"
    known = address or os.environ.get("RAY_ADDRESS") or ""
    if not known:  # `ray start` noted it
        with suppress(OSError, UnicodeDecodeError):
            known = Path(os.environ.get("RAY_TMPDIR") or "/tmp", NOTED).read_text().strip()
    host, _, port = known.removeprefix("ray://").rpartition(":")
    try:  # Ray itself would try for minutes
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(f"no Ray cluster answers {where}; {HOW}") from error
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises whatever its parts raise
        raise UsageError(
            f"cannot use the Ray cluster {where}: {_first_line(error)}; if it asks for a "
            "token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN; see docs/cluster.md"
        ) from error
    return ray, True


def _first_line(error: BaseException) -> str:
    """Return the first line of what Ray says, which names the cause, without its numbers."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].partition(" lease_id=")[0][:300] if lines else type(error).__name__
