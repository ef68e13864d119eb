"""The executor of a Ray cluster: one job at a time on each host, its records fetched as they come.

A node runs what the local executor runs (``ray_node``); this is the driver's side: which node
fits, what is new, what was lost. Data from a node is checked as a store's lines are, and has
limits; nothing else is read of it. ``RayCluster`` is all that is asked of Ray.
"""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from frameworktax import models
from frameworktax.errors import Fault, FrameworktaxError, UsageError, WorkerError
from frameworktax.measure.reporter import Reporter
from frameworktax.records import Point
from frameworktax.store import Writer
from frameworktax.store.shards import FIRST, decode_line
from frameworktax.store.write import PLAIN
from frameworktax.sweep.executor import Done, Job, Platform, limit_s
from frameworktax.sweep.ray_node import Chunk, Message, NodeHost, Order

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
CONNECT_S = 5.0
ANSWER_S = 60.0
"""A node that cannot say its versions in this time is left out."""
LINE_BYTES = 64 << 20
"""A session writes no line that is longer."""
SOURCE_BYTES = 4 << 20
"""A larger file is no source of a model."""
PREDEFINED = ("node:", "accelerator_type:", "CPU", "GPU", "memory", "object_store_memory")
OWN_LABEL, ACCELERATOR = "frameworktax", "ray.io/accelerator-type"
HOW = (
    "start one: ray start --head --labels frameworktax=NAME, on each further machine ray start "
    "--address HOST:6379 --labels frameworktax=NAME; see docs/cluster.md"
)


class LostError(Exception):
    """An actor on a node is gone; the message says why, as far as Ray knows."""


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


class RayCluster:
    """A cluster that runs; nothing of it is started or stopped here. Only this imports Ray."""

    def __init__(self, address: str | None = None) -> None:
        """Connect.

        Args:
            address: ``ray://HOST:PORT``, or None for the cluster that this host belongs to.

        Raises:
            UsageError: Ray is not installed, there is no cluster, or it is of another version.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise UsageError("--engine ray needs Ray; pip install 'frameworktax[ray]'") from error
        self._ray = ray
        self._connected = not ray.is_initialized()  # a caller's own connection stays the caller's
        if not self._connected:
            return
        where = f"at {address}" if address else "on this machine"
        if not _listens(address or os.environ.get("RAY_ADDRESS") or _noted()):
            raise UsageError(f"no Ray cluster answers {where}; {HOW}")
        try:
            ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
        except ConnectionError as error:
            raise UsageError(
                f"the Ray cluster {where} refuses the connection; if it asks for a token, set "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, else start it anew; see docs/cluster.md"
            ) from error
        except Exception as error:  # Ray raises whatever its parts raise
            raise UsageError(
                f"cannot use the Ray cluster: {_first_line(error)}; see docs/cluster.md"
            ) from error

    def nodes(self) -> Sequence[Node]:
        """Return the nodes that are alive."""
        return [
            Node(
                id=node["NodeID"],
                address=node["NodeManagerAddress"],
                labels=labels(node.get("Labels", {}), node["Resources"]),
                cpus=node["Resources"].get("CPU", 0.0),
                gpus=node["Resources"].get("GPU", 0.0),
            )
            for node in self._ray.nodes()
            if node["Alive"]
        ]

    def about(self, nodes: Sequence[Node]) -> Mapping[str, Mapping[str, Any] | str]:
        """Return ``about_here()`` of nodes by id; a text where one does not answer."""
        task = self._ray.remote(_about_task())
        options = {"num_cpus": 0, "max_retries": 0}
        asked = {
            node.id: task.options(**options, scheduling_strategy=self._on(node)).remote()
            for node in nodes
        }
        ready, _ = self._ray.wait(
            list(asked.values()), num_returns=len(asked), timeout=ANSWER_S, fetch_local=False
        )
        found: dict[str, Mapping[str, Any] | str] = {}
        for node_id, promise in asked.items():
            if promise not in ready:
                found[node_id] = f"does not answer within {ANSWER_S:.0f} s"
                continue
            try:
                found[node_id] = self.answer(promise)
            except LostError as error:
                found[node_id] = f"does not answer: {error}"
        return found

    def host(self, node: Node) -> Any:
        """Start a ``NodeHost`` that holds the whole node; it may wait until the node is free."""
        kind = self._ray.remote(NodeHost)
        return kind.options(
            num_cpus=node.cpus,
            num_gpus=node.gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=self._on(node),
        ).remote()

    def ask(self, host: Any, method: str, *arguments: Any) -> Any:
        """Call a method of a host; return a promise of its answer."""
        return getattr(host, method).remote(*arguments)

    def ready(self, promises: Sequence[Any], wait_s: float) -> Sequence[Any]:
        """Return those that have an answer, waiting for the first."""
        if not promises:
            return []
        return list(self._ray.wait(list(promises), num_returns=1, timeout=wait_s)[0])

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

    @staticmethod
    def _on(node: Node) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node.id, soft=False)


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


def labels(own: Mapping[str, str], resources: Mapping[str, float]) -> tuple[str, ...]:
    """Return what a study may call a node.

    The value of its label ``frameworktax``, its accelerator's type, every other label of its own
    as ``key=value``, and the names of its custom resources.
    """
    found = [own[key] for key in (OWN_LABEL, ACCELERATOR) if own.get(key)]
    found += [
        f"{key}={value}"
        for key, value in sorted(own.items())
        if key != OWN_LABEL and not key.startswith("ray.io/")
    ]
    found += [name for name in sorted(resources) if not name.startswith(PREDEFINED)]
    return tuple(dict.fromkeys(found))


def _about_task() -> Callable[[], dict[str, Any]]:
    """Return a function that a node without frameworktax can run: nested, it travels by value."""

    def about() -> dict[str, Any]:
        from contextlib import suppress
        from importlib import metadata
        from pathlib import Path
        from platform import python_version

        own: str | None = None
        torch: str | None = None
        with suppress(ImportError):
            from frameworktax.version import __version__ as own
        with suppress(metadata.PackageNotFoundError):
            torch = metadata.version("torch")
        memory = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0]
        return {
            "frameworktax": own,
            "python": python_version(),
            "torch": torch and torch.partition("+")[0],
            "torch_build": torch,
            "memory_bytes": int(memory) * 1024,
        }

    return about


def about_here() -> dict[str, Any]:
    """Return the versions and the free memory of this host."""
    return _about_task()()


def _first_line(error: BaseException) -> str:
    """Return the first line of what Ray says, which names the cause, without its numbers."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].partition(" lease_id=")[0][:300] if lines else type(error).__name__


class Lines:
    """Puts lines together that were cut anywhere."""

    def __init__(self) -> None:
        self.taken = 0
        """Bytes so far."""
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Take a chunk and yield the lines that are whole now; raises ValueError on no end."""
        self.taken += len(chunk)
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LINE_BYTES:
            raise ValueError("a line without end")
        yield from whole


class RemoteJob:
    """A job on a node, and what has arrived of it.

    Attributes:
        since: when it was given to the node (``time.monotonic``).
        began: when it took the host's lock, None before that.
        is_late: whether it was ended because it took too long.
        has_answered: whether its host is there.
        done: how the job ended, None until then.
    """

    def __init__(
        self, folder: Path, job: Job, code: Mapping[str, str], node: Node, reporter: Reporter
    ) -> None:
        self.job = job
        self.code = code
        self.node = node
        self.since = time.monotonic()
        self.began: float | None = None
        self.is_late = False
        self.has_answered = False
        self.done: Done | None = None
        self._folder = folder
        self._reporter = reporter
        self._records = Lines()
        self._messages = Lines()
        self._writer: Writer | None = None
        self._session = ""
        self._failed = ""
        self._end: Done | None = None

    @property
    def offsets(self) -> tuple[int, int]:
        """How many bytes of records and of messages are here."""
        return self._records.taken, self._messages.taken

    def feed(self, answer: object) -> None:
        """Write what ``NodeHost.take`` gave; once the job has ended, ``done`` says how.

        Raises:
            StoreError: it cannot be written here.
            ValueError: it is no part of a session.
        """
        try:
            chunk = msgspec.convert(answer, Chunk)
            for line in self._records.feed(chunk.records):
                self._record(line)
            for line in self._messages.feed(chunk.messages):
                self._message(msgspec.json.decode(line, type=Message))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from error
        is_whole = self._end is not None and not chunk.records and not chunk.messages
        if chunk.ended is None and not is_whole:
            return
        self.close()
        if self._end is not None:
            self.done = self._end
        elif self.is_late:
            self.done = self.lost("timeout", f"ended after {limit_s(self.job):.0f} s")
        else:
            last = (chunk.stderr.strip().splitlines() or [""])[-1]
            why = self._failed or f"its process ended with code {chunk.ended}; {last}"
            self.done = self.lost("crashed", why)

    def lost(self, status: Fault, why: str) -> Done:
        """Return the end of a job whose process did not come to its own."""
        passed_s = 0.0 if self.began is None else time.monotonic() - self.began
        return Done(
            job=self.job,
            session=self._session,
            wall_ns=round(passed_s * 1e9),
            error=WorkerError(status, f"{self.node}: {why}"),
        )

    def close(self) -> None:
        """Close the shard."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _record(self, line: bytes) -> None:
        if line.strip() in (b"", FIRST):  # our own shard has a header already
            return
        record = decode_line(line)
        if record is None:
            raise ValueError("a line that is no record")
        if self._writer is None and PLAIN.fullmatch(record.session):
            self._session = record.session
            self._writer = Writer(self._folder, record.session)
        if self._writer is None or record.session != self._session:
            raise ValueError("a record of another session")
        self._writer.write(record)

    def _message(self, message: Message) -> None:
        if message.began:
            self.began = time.monotonic()
        if message.phase is not None:
            self._reporter.phase(f"{self.node}: {message.phase}")
        if message.say is not None:
            self._reporter.say(f"{self.node}: {message.say}")
        self._failed = message.failed or self._failed
        if (end := message.done) is not None:
            error = None if end.error is None else FrameworktaxError(end.error)
            if end.fault is not None:
                error = WorkerError(end.fault, end.error or "")
            self._end = Done(
                job=self.job,
                session=end.session,
                wall_ns=end.wall_ns,
                spent_ns=end.spent_ns,
                error=error,
            )


class RayExecutor:
    """Runs jobs on the nodes of a cluster.

    Args:
        folder: the store.
        cluster: where; tests have one without Ray.
        reporter: receives the progress of sessions, and which nodes cannot be used.
        command: recorded with each session.
        allow_code: whether a user's own model may be sent to a node.
        own: versions here, by the names of ``CHECKED``; a node must have the same.
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
        self._about: dict[str, Mapping[str, Any]] = {}
        self._unfit: dict[str, str] = {}
        self._nodes: list[Node] = []
        self._asked_at = float("-inf")
        self._waiting: deque[tuple[Job, Mapping[str, str]]] = deque()
        self._refusals: dict[str, list[float]] = defaultdict(list)
        """When jobs could not begin, by node; forgotten once one begins."""
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
            left_s = WAIT_S if wait_s is None else wait_s - (time.monotonic() - since)
            if left_s <= 0:
                return
            self._place()
            self._listen(min(WAIT_S, left_s))

    def cancel(self, name: str) -> bool:
        """Take back a job that has not begun: it waits here, or for its node to be free."""
        for entry in self._waiting:
            if entry[0].name == name:
                self._waiting.remove(entry)
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
            for one in self._running.values():
                self._cluster.ask(self._hosts[one.node.id], "stop")
            while self._running and time.monotonic() < until:
                self._listen(WAIT_S)
            closing = [self._cluster.ask(host, "close") for host in self._hosts.values()]
            while closing and time.monotonic() < until:
                ready = self._cluster.ready(closing, WAIT_S)
                closing = [promise for promise in closing if promise not in ready]
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
        """Ask the cluster for its nodes, and new ones for their versions."""
        if time.monotonic() - self._asked_at < NODES_EVERY_S:
            return
        alive = self._cluster.nodes()
        new = [n for n in alive if n.id not in self._about and n.id not in self._unfit]
        answers = self._cluster.about(new) if new else {}
        for node in new:
            about = answers[node.id]
            fault = about if isinstance(about, str) else self._differs(about)
            if fault is None:
                self._about[node.id] = about
            else:
                self._refuse(node, fault)
        self._nodes = [n for n in alive if n.id in self._about and n.id not in self._unfit]
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
        """Begin waiting jobs on nodes that are free."""
        self._look()
        busy = {one.node.address for one in self._running.values()}
        for entry in list(self._waiting):
            job, code = entry
            fitting = [node for node in self._nodes if job.platform in self._names(node)]
            free = next((n for n in fitting if n.address not in busy and self._may(n)), None)
            if free is not None:
                busy.add(free.address)
                self._waiting.remove(entry)
                self._begin(job, code, free)

    def _may(self, node: Node) -> bool:
        refusals = self._refusals[node.id]
        return not refusals or time.monotonic() - refusals[-1] >= AGAIN_S

    def _begin(self, job: Job, code: Mapping[str, str], node: Node) -> None:
        order = Order(job=job, command=self._command, allow_code=self._allow_code)
        if node.id not in self._hosts:
            self._hosts[node.id] = self._cluster.host(node)
        self._ask(
            RemoteJob(self._folder, job, code, node, self._reporter),
            "begin",
            msgspec.json.encode(order),
            dict(code),
        )

    def _ask(self, one: RemoteJob, method: str, *arguments: Any) -> None:
        promise = self._cluster.ask(self._hosts[one.node.id], method, *arguments)
        self._running[promise] = one

    def _listen(self, wait_s: float) -> None:
        """Fetch what is new."""
        if not self._running:
            time.sleep(wait_s)
        for promise in self._cluster.ready(list(self._running), wait_s):
            one = self._running.pop(promise)
            one.has_answered = True
            try:
                one.feed(self._cluster.answer(promise))
            except LostError as error:
                (self._again if one.began is None else self._lose)(one, f"was lost: {error}")
                continue
            except ValueError as error:
                self._lose(one, f"sent something that is no session: {error}")
                continue
            if one.began is not None:
                self._refusals.pop(one.node.id, None)
            if one.done is None:
                self._ask(one, "take", *one.offsets)
            else:
                self._ended.append(one.done)
        for one in self._running.values():
            self._watch(one)

    def _watch(self, one: RemoteJob) -> None:
        """End a job that is late, and say which node is waited for."""
        now = time.monotonic()
        if not one.has_answered and now - one.since > BUSY_S:
            one.has_answered = True
            self._reporter.say(f"waiting for {one.node}, which is busy")
        if one.began is not None and not one.is_late and now - one.began > limit_s(one.job):
            one.is_late = True
            self._cluster.ask(self._hosts[one.node.id], "stop")

    def _lose(self, one: RemoteJob, why: str) -> None:
        """Give back a job whose node is gone; what arrived of it stays."""
        self._let_go(one)
        self._ended.append(one.lost("crashed", why))

    def _again(self, one: RemoteJob, why: str) -> None:
        """Have a job wait again whose node was gone before it began: it was not lost."""
        self._let_go(one)
        self._waiting.appendleft((one.job, one.code))
        refusals = self._refusals[one.node.id]
        refusals.append(time.monotonic())
        if len(refusals) >= TRIES:
            self._refuse(one.node, why)

    def _let_go(self, one: RemoteJob) -> None:
        one.close()
        self._cluster.drop(self._hosts.pop(one.node.id))
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
