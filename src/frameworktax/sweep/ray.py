"""The executor of a Ray cluster: one job at a time on each host, its records written as they come.

A node runs what the local executor runs (``ray_node``); this is the driver's side: which node
fits, what is new, what was lost or is late. Lines of a node's shard become lines of a shard here,
whole; whether they are records is for readers to say. ``RayCluster`` is all that is asked of Ray.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from frameworktax import models
from frameworktax.errors import UsageError, WorkerError
from frameworktax.measure.reporter import Reporter
from frameworktax.records import Point
from frameworktax.store import Writer
from frameworktax.sweep.executor import Done, Job, Platform, limit_s, lost
from frameworktax.sweep.ray_cluster import LostError, Node, about_here
from frameworktax.sweep.ray_node import News

CHECKED = ("frameworktax", "python", "torch")
"""What must be of one version here and on every node that measures."""
WAIT_S = 1.0
NODES_EVERY_S = 2.0
"""How often the cluster is asked for its nodes while jobs run."""
BUSY_S = 30.0
"""A node that has not begun after this long is busy with something else; it is said once."""
ENDING_S = 25.0
"""How long fetching what is new may take at the end."""
SOURCE_BYTES = 4 << 20
"""A larger file is no source of a model."""


class RemoteJob:
    """A job on a node, and what has arrived of it.

    Attributes:
        since: when it was given to the node (``time.monotonic``).
        began: when the first of its shard came, None before that.
        taken: bytes so far.
    """

    def __init__(self, folder: Path, job: Job, code: Mapping[str, str], node: Node) -> None:
        self.job = job
        self.code = code
        self.node = node
        self.since = time.monotonic()
        self.began: float | None = None
        self.taken = 0
        self._folder = folder
        self._rest = b""
        self._session = ""
        self._writer: Writer | None = None

    def feed(self, news: News) -> None:
        """Write the whole lines of what came; the first is a shard's header.

        Raises:
            StoreError: it cannot be written here.
        """
        self.taken += len(news.data)
        *lines, self._rest = (self._rest + news.data).split(b"\n")
        for line in lines:
            if self._writer is None:
                self.began = time.monotonic()
                self._session = news.session
                self._writer = Writer(self._folder, news.session)
            else:
                self._writer.append(line)

    @property
    def is_late(self) -> bool:
        """Whether it takes longer than a job may."""
        return self.began is not None and time.monotonic() - self.began > limit_s(self.job)

    def done(self, done: Done) -> Done:
        """Close the shard and return how the job ended here."""
        self.close()
        error = done.error
        if isinstance(error, WorkerError):
            error = WorkerError(error.status, f"{self.node}: {error}")
        return replace(done, job=self.job, session=self._session, error=error)

    def close(self) -> None:
        """Close the shard."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class RayExecutor:
    """Runs jobs on the nodes of a cluster.

    ``cluster`` is a ``RayCluster``, or what tests have in its place; ``own`` are the versions here,
    by the names of ``CHECKED``: a node must have the same.
    """

    def __init__(
        self,
        folder: Path,
        cluster: Any,
        reporter: Reporter,
        command: Sequence[str],
        *,
        allow_code: bool = False,
        own: Mapping[str, str | None] | None = None,
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._reporter = reporter
        self._command = tuple(command)
        self._allow_code = allow_code
        self._own = dict(about_here() if own is None else own)
        self._fit: set[str] = set()
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
        """Return the labels of the nodes that are alive and have our versions.

        Raises:
            UsageError: there has been no such node.
        """
        self._look()
        if not self._fit:
            why = "; ".join(self._unfit.values()) or "it has no node"
            raise UsageError(f"the cluster offers nothing to measure on: {why}")
        found: dict[str, list[Node]] = defaultdict(list)
        for node in self._nodes:
            for label in node.names:
                found[label].append(node)
        return [self._platform(label, nodes) for label, nodes in found.items()]

    def submit(self, job: Job) -> None:
        """Take a job.

        Raises:
            UsageError: its model cannot be sent to a node.
        """
        self._waiting.append((job, shipped(job.points, self._allow_code)))

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

    # --- nodes --------------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask the cluster for its nodes, and check the versions of new ones."""
        if time.monotonic() - self._asked_at < NODES_EVERY_S:
            return
        alive = self._cluster.nodes()
        for node in alive:
            if node.id in self._fit or node.id in self._unfit:
                continue
            if fault := node.fault or self._differs(node.about):
                self._refuse(node, fault)
            else:
                self._fit.add(node.id)
        self._nodes = [node for node in alive if node.id not in self._unfit]
        self._asked_at = time.monotonic()

    def _refuse(self, node: Node, why: str) -> None:
        self._unfit[node.id] = f"{node} {why}"
        self._reporter.say(f"left out: {self._unfit[node.id]}")

    def _differs(self, about: Mapping[str, Any]) -> str | None:
        """Return how a node's versions differ from ours, None if they do not."""
        if about["frameworktax"] is None:
            return f"has no frameworktax; install {self._own['frameworktax']} there"
        for name in CHECKED:
            if self._own[name] is None:  # a driver need not have torch: the first node counts
                self._own[name] = about[name]
            if about[name] != self._own[name]:
                return (
                    f"has {name} {about[name] or 'not at all'}, others {self._own[name]}; "
                    "install one version everywhere"
                )
        return None

    def _platform(self, label: str, nodes: Sequence[Node]) -> Platform:
        device = "cuda:0" if all(node.has_gpu for node in nodes) else "cpu"
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
            memory_bytes=min(int(node.about["memory_bytes"]) for node in nodes),
        )

    # --- jobs ---------------------------------------------------------------------------------

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
                self._begin(RemoteJob(self._folder, job, code, free))

    def _begin(self, one: RemoteJob) -> None:
        node = one.node
        if node.id not in self._hosts:
            self._hosts[node.id] = self._cluster.host(node, self._command)
        self._cluster.ask(self._hosts[node.id], "begin", one.job, one.code)
        self._take(one)

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
                self._refuse(one.node, str(done.error))
                self._asked_at = float("-inf")
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
        if news.done is None and one.is_late:
            self._let_go(one)
            return lost(one.job, "timeout", f"ended after {limit_s(one.job):.0f} s")
        return news.done

    def _let_go(self, one: RemoteJob) -> None:
        """End a host; what has arrived of its job stays."""
        one.close()
        if (host := self._hosts.pop(one.node.id, None)) is not None:
            self._cluster.drop(host)
        self._asked_at = float("-inf")


def shipped(points: Iterable[Point], allow_code: bool) -> dict[str, str]:
    """Return the files of the user's own models among points, with their source.

    A file goes alone: what it imports must be installed on the nodes, as must a model that is
    named by its package.

    Raises:
        UsageError: code may not be sent, a file cannot be read, or it has no place on a node.
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys(point.workload.model for point in points):
        if not models.is_user_model(name):
            where = Path(name.partition(":")[2] or name)
            if where.exists() and not where.is_absolute():  # a node has another current folder
                raise UsageError(
                    f"{where} is not sent to nodes; name it by a path from the root that they "
                    "all have"
                )
            continue
        if not allow_code:
            raise UsageError(f"{name} is code of yours; read it, then give --allow-code")
        where = Path(name.rpartition(":")[0])
        if not (where.suffix == ".py" or "/" in str(where)):
            continue
        if where.is_absolute() or ".." in where.parts:
            raise UsageError(
                f"{where} cannot be sent to a node; go to its folder and name it from there"
            )
        try:
            if where.stat().st_size > SOURCE_BYTES:
                raise UsageError(f"{where} is larger than {SOURCE_BYTES >> 20} MB; send no data")
            found[str(where)] = where.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {where} to send it to a node: {error}") from error
    return found
