"""Ray, and the only place that imports it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError
from frameworktax.sweep.ray import LostError, Node
from frameworktax.sweep.ray_node import NodeHost

QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
OWN_LABEL = "frameworktax"
ACCELERATOR = "ray.io/accelerator-type"
PREDEFINED = ("node:", "accelerator_type:", "CPU", "GPU", "memory", "object_store_memory")
CONNECT_S = 5.0
ANSWER_S = 60.0
"""A node that cannot say its versions in this time is left out."""
HOW = (
    "start one: ray start --head --labels frameworktax=NAME, on each further machine ray start "
    "--address HOST:6379 --labels frameworktax=NAME; see docs/cluster.md"
)


class RayCluster:
    """A cluster that runs; nothing of it is started or stopped here."""

    def __init__(self, address: str | None = None) -> None:
        """Connect.

        Args:
            address: ``ray://HOST:PORT``, or None for the cluster that this host belongs to.

        Raises:
            UsageError: Ray is not installed, there is no cluster, or it is of another version.
        """
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        try:
            import ray
        except ImportError as error:
            raise UsageError("--engine ray needs Ray; pip install 'frameworktax[ray]'") from error
        self._ray = ray
        self._connected = not ray.is_initialized()  # a caller's own connection stays the caller's
        if not self._connected:
            return
        where = f"at {address}" if address else "on this machine"
        if not _answers(address or os.environ.get("RAY_ADDRESS") or _noted()):
            raise UsageError(f"no Ray cluster answers {where}; {HOW}")
        try:
            ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
        except ConnectionError as error:
            raise UsageError(
                f"the Ray cluster {where} lets nobody in; if it asks for a token, set "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, else start it anew; see docs/cluster.md"
            ) from error
        except Exception as error:  # Ray raises whatever its parts raise
            said = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise UsageError(f"cannot use the Ray cluster: {said}; see docs/cluster.md") from error

    def nodes(self) -> Sequence[Node]:
        """Return the nodes that are alive."""
        return [
            Node(
                id=told["NodeID"],
                address=told["NodeManagerAddress"],
                labels=labels(told.get("Labels", {}), told["Resources"]),
                cpus=told["Resources"].get("CPU", 0.0),
                gpus=told["Resources"].get("GPU", 0.0),
            )
            for told in self._ray.nodes()
            if told["Alive"]
        ]

    def about(self, nodes: Sequence[Node]) -> Mapping[str, Mapping[str, Any] | str]:
        """Return what nodes say of themselves, by id; a text where one does not say anything."""
        tell = self._ray.remote(_teller())
        asked = {
            node.id: tell.options(
                num_cpus=0, max_retries=0, scheduling_strategy=self._on(node)
            ).remote()
            for node in nodes
        }
        kept, _ = self._ray.wait(
            list(asked.values()), num_returns=len(asked), timeout=ANSWER_S, fetch_local=False
        )
        found: dict[str, Mapping[str, Any] | str] = {}
        for node_id, promise in asked.items():
            if promise not in kept:
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
        """Return those that are kept, waiting for the first."""
        if not promises:
            return []
        kept, _ = self._ray.wait(list(promises), num_returns=1, timeout=wait_s)
        return list(kept)

    def answer(self, promise: Any) -> Any:
        """Return a kept promise's answer; raises LostError."""
        try:
            return self._ray.get(promise, timeout=ANSWER_S)
        except self._ray.exceptions.RayError as error:
            raise LostError(_told(error)) from error

    def drop(self, host: Any) -> None:
        """End a host at once, with what it runs."""
        self._ray.kill(host, no_restart=True)

    def close(self) -> None:
        """Let go of the cluster."""
        if self._connected:
            self._ray.shutdown()

    def _on(self, node: Node) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node.id, soft=False)


def _noted() -> str:
    """Return the address that ``ray start`` noted on this host, empty if none."""
    note = Path(os.environ.get("RAY_TMPDIR") or "/tmp", "ray", "ray_current_cluster")
    with suppress(OSError, UnicodeDecodeError):
        return note.read_text().strip()
    return ""


def _answers(address: str) -> bool:
    """Return whether anyone listens there: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def labels(told: Mapping[str, str], resources: Mapping[str, float]) -> tuple[str, ...]:
    """Return what a study may call a node.

    The value of its label ``frameworktax``, its accelerator's type, every other label of its own
    as ``key=value``, and the names of its custom resources.
    """
    found = [told[key] for key in (OWN_LABEL, ACCELERATOR) if told.get(key)]
    found += [
        f"{key}={value}"
        for key, value in sorted(told.items())
        if key != OWN_LABEL and not key.startswith("ray.io/")
    ]
    found += [name for name in sorted(resources) if not name.startswith(PREDEFINED)]
    return tuple(dict.fromkeys(found))


def versions() -> dict[str, str | None]:
    """Return the versions here of what must be the same everywhere."""
    told = _teller()()
    return {name: told[name] for name in ("frameworktax", "python", "torch")}


def _teller() -> Callable[[], dict[str, Any]]:
    """Return a function that a node without frameworktax can run: nested, it travels by value."""

    def tell() -> dict[str, Any]:
        from contextlib import suppress
        from importlib import metadata
        from pathlib import Path
        from platform import python_version

        def version(name: str) -> str | None:
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                return None

        own: str | None = None
        with suppress(ImportError):
            from frameworktax.version import __version__ as own
        torch = version("torch")
        memory = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0]
        return {
            "frameworktax": own,
            "python": python_version(),
            "torch": torch and torch.partition("+")[0],
            "torch_build": torch,
            "memory_bytes": int(memory) * 1024,
        }

    return tell


def _told(error: BaseException) -> str:
    """Return the first line of what Ray says, which names the cause, without its numbers."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    first = lines[0].partition(" lease_id=")[0] if lines else type(error).__name__
    return first[:300]
