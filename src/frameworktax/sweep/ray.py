"""The engine of a Ray cluster: one job at a time on each host, its records home as they come.

A node runs what the local engine runs (``ray_node``, ``campaign.node``); here is the driver's side:
which node fits, what is new, what was lost. Ray itself is behind ``Cluster`` (``ray_cluster``).
"""

from __future__ import annotations

import json
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from frameworktax.errors import UsageError, WorkerError
from frameworktax.sweep.executor import Done, Job, Platform, limit_s
from frameworktax.sweep.ray_code import shipped
from frameworktax.sweep.ray_results import Homecoming, Listener

CHECKED = ("frameworktax", "python", "torch")
"""What must be of one version here and on every node that measures."""
WAIT_S = 1.0
NODES_EVERY_S = 2.0
"""How often the cluster is asked for its nodes while jobs run."""
BUSY_S = 30.0
"""A node that has not begun after this long is busy with something else; it is said once."""
AGAIN_S = 5.0
"""When a node is tried again on which a job could not begin: Ray learns late of a dead one."""
TRIES = 5
"""A node on which so many jobs in a row could not begin is left out."""
ENDING_S = 25.0
"""How long the end of all jobs may take; longer than a node's own patience with one."""


class LostError(Exception):
    """Whoever was asked on a node is gone; the message says why, as far as Ray knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a cluster.

    Attributes:
        id: Ray's.
        address: nodes of one address are on one host, and take turns.
        labels: what a study may call it.
        cpus: how many it offers to Ray.
        gpus: likewise.
    """

    id: str
    address: str
    labels: tuple[str, ...]
    cpus: float = 1.0
    gpus: float = 0.0

    def __str__(self) -> str:
        return f"node {self.address} ({', '.join(self.labels) or self.id[:8]})"


class Cluster(Protocol):
    """What the engine needs of Ray."""

    def nodes(self) -> Sequence[Node]:
        """Return the nodes that are alive."""

    def about(self, nodes: Sequence[Node]) -> Mapping[str, Mapping[str, Any] | str]:
        """Return what nodes say of themselves, by id; a text where one does not say anything."""

    def host(self, node: Node) -> Any:
        """Start a ``NodeHost`` that holds the whole node; it may wait until the node is free."""

    def ask(self, host: Any, method: str, *arguments: Any) -> Any:
        """Call a method of a host; return a promise of its answer."""

    def ready(self, promises: Sequence[Any], wait_s: float) -> Sequence[Any]:
        """Return those that are kept, waiting for the first."""

    def answer(self, promise: Any) -> Any:
        """Return a kept promise's answer; raises LostError."""

    def drop(self, host: Any) -> None:
        """End a host at once, with what it runs."""

    def close(self) -> None:
        """Let go of the cluster."""


@dataclass(slots=True)
class _Running:
    """A job on a node, with the promise of what is new of it."""

    home: Homecoming
    code: Mapping[str, str]
    node: Node
    host: Any
    since: float
    late: bool = False
    heard: bool = False


class RayEngine:
    """Runs jobs on the nodes of a cluster.

    Args:
        folder: the store.
        cluster: where.
        listener: told how sessions go, and of nodes that cannot be used.
        command: recorded with each session.
        own: versions here, by the names of ``CHECKED``; a node must have the same.
        allow_code: whether a user's own model may be sent to a node.
    """

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        listener: Listener,
        command: Sequence[str],
        own: Mapping[str, str | None],
        *,
        allow_code: bool = False,
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._listener = listener
        self._command = tuple(command)
        self._own = dict(own)
        self._allow_code = allow_code
        self._about: dict[str, Mapping[str, Any]] = {}
        self._unfit: dict[str, str] = {}
        self._nodes: list[Node] = []
        self._asked_at = float("-inf")
        self._waiting: deque[tuple[Job, Mapping[str, str]]] = deque()
        self._refused: dict[str, list[float]] = {}
        """When jobs could not begin, by node; forgotten once one begins."""
        self._hosts: dict[str, Any] = {}
        self._running: dict[Any, _Running] = {}
        self._ended: deque[Done] = deque()

    # --- the five methods ---------------------------------------------------------------------

    def platforms(self) -> Sequence[Platform]:
        """Return the labels of the nodes that are alive and have our versions.

        Raises:
            UsageError: there has been no such node.
        """
        self._look()
        if not self._about:
            why = "; ".join(self._unfit.values()) or "it has no node"
            raise UsageError(f"the cluster offers nothing to measure on: {why}")
        found: dict[str, list[Node]] = defaultdict(list)
        for node in self._nodes:
            for label in self._names(node):
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
            left = WAIT_S if wait_s is None else wait_s - (time.monotonic() - since)
            if left <= 0:
                return
            self._place()
            self._listen(min(WAIT_S, left))

    def cancel(self, name: str) -> bool:
        """Take back a job that has not begun: it waits here, or for its node to be free."""
        for entry in self._waiting:
            if entry[0].name == name:
                self._waiting.remove(entry)
                return True
        for promise, one in self._running.items():
            if one.home.job.name == name and one.home.began is None:
                del self._running[promise]
                self._let_go(one)
                return True
        return False

    def close(self) -> None:
        """End every job, take home what it measured, and leave the cluster as it was."""
        self._waiting.clear()
        until = time.monotonic() + ENDING_S
        try:
            for one in self._running.values():
                self._cluster.ask(one.host, "stop")
            while self._running and time.monotonic() < until:
                self._listen(WAIT_S)
            partings = [self._cluster.ask(host, "close") for host in self._hosts.values()]
            while partings and time.monotonic() < until:
                kept = self._cluster.ready(partings, WAIT_S)
                partings = [promise for promise in partings if promise not in kept]
        finally:
            for one in self._running.values():
                one.home.close()
            for host in self._hosts.values():
                self._cluster.drop(host)
            self._running.clear()
            self._hosts.clear()
            self._ended.clear()
            self._cluster.close()

    # --- nodes --------------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask the cluster for its nodes, and new ones for their versions."""
        if time.monotonic() - self._asked_at < NODES_EVERY_S:
            return
        alive = self._cluster.nodes()
        new = [n for n in alive if n.id not in self._about and n.id not in self._unfit]
        told = self._cluster.about(new) if new else {}
        for node in new:
            about = told[node.id]
            fault = about if isinstance(about, str) else self._differs(about)
            if fault is None:
                self._about[node.id] = dict(about)  # type: ignore[arg-type]  # no text: no fault
            else:
                self._unfit[node.id] = f"{node} {fault}"
                self._listener.say(f"left out: {self._unfit[node.id]}")
        self._nodes = [n for n in alive if n.id in self._about and n.id not in self._unfit]
        self._asked_at = time.monotonic()

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

    def _names(self, node: Node) -> tuple[str, ...]:
        """Return every label a study may use for a node."""
        devices = ("local", "cpu", *(("cuda:0",) if self._has_gpu(node) else ()))
        return tuple(dict.fromkeys((*devices, *node.labels)))

    def _has_gpu(self, node: Node) -> bool:
        return node.gpus > 0 and "+cpu" not in str(self._about[node.id]["torch_build"] or "+cpu")

    def _platform(self, label: str, nodes: Sequence[Node]) -> Platform:
        device = "cuda:0" if all(self._has_gpu(node) for node in nodes) else "cpu"
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
            memory_bytes=min(int(self._about[node.id]["memory_bytes"]) for node in nodes),
        )

    # --- jobs ---------------------------------------------------------------------------------

    def _place(self) -> None:
        """Begin what waits on nodes that are free."""
        self._look()
        busy = {one.node.address for one in self._running.values()}
        for entry in list(self._waiting):
            job, code = entry
            fitting = [node for node in self._nodes if job.platform in self._names(node)]
            free = next((n for n in fitting if n.address not in busy and self._may(n)), None)
            if free is None:
                continue
            busy.add(free.address)
            self._waiting.remove(entry)
            self._begin(job, code, free)

    def _may(self, node: Node) -> bool:
        refused = self._refused.get(node.id)
        return not refused or time.monotonic() - refused[-1] >= AGAIN_S

    def _begin(self, job: Job, code: Mapping[str, str], node: Node) -> None:
        order = {"job": asdict(job), "command": self._command, "allow_code": self._allow_code}
        if node.id not in self._hosts:
            self._hosts[node.id] = self._cluster.host(node)
        host = self._hosts[node.id]
        home = Homecoming(self._folder, job, str(node), self._listener)
        promise = self._cluster.ask(host, "begin", json.dumps(order), dict(code))
        self._running[promise] = _Running(home, code, node, host, time.monotonic())

    def _ask(self, one: _Running) -> None:
        self._running[self._cluster.ask(one.host, "take", *one.home.offsets)] = one

    def _listen(self, wait_s: float) -> None:
        """Take home what is new."""
        if not self._running:
            time.sleep(wait_s)
        for promise in self._cluster.ready(list(self._running), wait_s):
            one = self._running.pop(promise)
            one.heard = True
            try:
                one.home.feed(self._cluster.answer(promise))
            except LostError as error:
                begun = one.home.began is not None
                (self._lose if begun else self._refuse)(one, f"was lost: {error}")
            except WorkerError as error:
                self._lose(one, f"cannot be understood: {error}")
            else:
                if one.home.began is not None:
                    self._refused.pop(one.node.id, None)
                if one.home.done is None:
                    self._ask(one)
                else:
                    self._ended.append(self._told(one, one.home.done))
        for one in list(self._running.values()):
            self._watch(one)

    def _watch(self, one: _Running) -> None:
        """End a job that is late, and say which node keeps one waiting."""
        now, began = time.monotonic(), one.home.began
        if not one.heard and now - one.since > BUSY_S:
            one.heard = True
            self._listener.say(f"waiting for {one.node}, which is busy")
        if began is not None and not one.late and now - began > limit_s(one.home.job):
            one.late = True
            self._cluster.ask(one.host, "stop")

    def _told(self, one: _Running, done: Done) -> Done:
        if not one.late:
            return done
        limit = limit_s(one.home.job)
        return one.home.ended(WorkerError("timeout", f"{one.node}: ended after {limit:.0f} s"))

    def _lose(self, one: _Running, why: str) -> None:
        """Give back a job whose node is gone; what came home of it stays."""
        self._let_go(one)
        self._ended.append(one.home.ended(WorkerError("crashed", f"{one.node} {why}")))

    def _refuse(self, one: _Running, why: str) -> None:
        """Have a job wait again whose node was gone before it began: it was not lost."""
        self._let_go(one)
        self._waiting.appendleft((one.home.job, one.code))
        refused = self._refused.setdefault(one.node.id, [])
        refused.append(time.monotonic())
        if len(refused) >= TRIES:
            self._unfit[one.node.id] = f"{one.node} {why}"
            self._listener.say(f"left out: {self._unfit[one.node.id]}")

    def _let_go(self, one: _Running) -> None:
        one.home.close()
        self._cluster.drop(self._hosts.pop(one.node.id))
        self._asked_at = float("-inf")
