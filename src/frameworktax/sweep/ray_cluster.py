"""What is asked of Ray; only this imports it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError, needs
from frameworktax.sweep.ray_node import NodeHost

CONNECT_S = 5.0
ANSWER_S = 60.0
"""A node that cannot say its versions in this time is left out."""
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
        about: what it says of itself (``about_here``).
        fault: why it does not say it, empty if it does.
    """

    id: str
    address: str
    labels: tuple[str, ...]
    cpus: float = 1.0
    gpus: float = 0.0
    about: Mapping[str, Any]
    fault: str = ""

    def __str__(self) -> str:
        return f"node {self.address} ({', '.join(self.labels) or self.id[:8]})"

    @property
    def has_gpu(self) -> bool:
        """Whether it offers a GPU, and has a torch for it."""
        return self.gpus > 0 and "+cpu" not in str(self.about["torch_build"] or "+cpu")

    @property
    def names(self) -> tuple[str, ...]:
        """Every label that a study may use for it."""
        devices = ("local", "cpu", *(("cuda:0",) if self.has_gpu else ()))
        return tuple(dict.fromkeys((*devices, *self.labels)))


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
        self._nodes: dict[str, Node] = {}
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
        """Return the nodes that are alive; each is asked about itself once."""
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        new = [node for node in alive if node["NodeID"] not in self._nodes]
        asked = self._about([node["NodeID"] for node in new])
        for node, (about, fault) in zip(new, asked, strict=True):
            self._nodes[node["NodeID"]] = Node(
                id=node["NodeID"],
                address=node["NodeManagerAddress"],
                labels=labels(node.get("Labels", {}), node["Resources"]),
                cpus=node["Resources"].get("CPU", 0.0),
                gpus=node["Resources"].get("GPU", 0.0),
                about=about,
                fault=fault,
            )
        return [self._nodes[node["NodeID"]] for node in alive]

    def _about(self, nodes: Sequence[str]) -> Iterator[tuple[Mapping[str, Any], str]]:
        task = self._ray.remote(_about_task())
        promises = [
            task.options(num_cpus=0, max_retries=0, scheduling_strategy=self._on(node)).remote()
            for node in nodes
        ]
        ready = self.ready(promises, ANSWER_S, len(promises))
        for promise in promises:
            if promise not in ready:
                yield {}, f"does not answer within {ANSWER_S:.0f} s"
                continue
            try:
                yield self.answer(promise), ""
            except LostError as error:
                yield {}, f"does not answer: {error}"

    def host(self, node: Node, command: Sequence[str]) -> Any:
        """Start a ``NodeHost`` that holds the whole node; it may wait until the node is free."""
        kind = self._ray.remote(NodeHost)
        return kind.options(
            num_cpus=node.cpus,
            num_gpus=node.gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=self._on(node.id),
        ).remote(command)

    def ask(self, host: Any, method: str, *arguments: Any) -> Any:
        """Call a method of a host; return a promise of its answer."""
        return getattr(host, method).remote(*arguments)

    def ready(self, promises: Sequence[Any], wait_s: float, number: int = 1) -> Sequence[Any]:
        """Return those that have an answer, waiting for so many."""
        if not promises:
            return []
        return list(self._ray.wait(list(promises), num_returns=number, timeout=wait_s)[0])

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
    def _on(node_id: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id, soft=False)


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
