"""What is asked of Ray, by a module that stands in for it."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from frameworktax.errors import UsageError
from frameworktax.measure.reporter import Reporter
from frameworktax.sweep.ray import LostError, RayCluster
from frameworktax.sweep.ray_node import NodeHost
from frameworktax.sweep.run import open_executor, platforms_of


class RayError(Exception):
    pass


def a_node(name, **more):
    return {
        "NodeID": name,
        "Alive": True,
        "NodeManagerAddress": "10.0.0.1",
        "Labels": {"frameworktax": "left", "disk": "nvme", "ray.io/accelerator-type": "A100"},
        "Resources": {"CPU": 8.0, "GPU": 2.0, "memory": 7.0, "rack7": 1.0},
        **more,
    }


class Ray(SimpleNamespace):
    """Promises are functions; a pending one is None."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, **more):
        super().__init__(options=[], begun=[], ended=0, fault=None, **more)
        self.alive = [a_node("a"), a_node("b", Alive=False)]

    def is_initialized(self):
        return False

    def init(self, **arguments):
        self.begun.append(arguments)
        if self.fault is not None:
            raise self.fault

    def shutdown(self):
        self.ended += 1

    def nodes(self):
        return self.alive

    def remote(self, what):
        def options(**given):
            self.options.append(given)
            return SimpleNamespace(remote=lambda *more: self.say(what, given, *more))

        return SimpleNamespace(options=options)

    def say(self, what, given):
        return what

    def wait(self, promises, **more):
        return [p for p in promises if p is not None], [p for p in promises if p is None]

    def get(self, promise, timeout):
        return promise()

    def kill(self, host, no_restart):
        self.begun.append(("kill", host, no_restart))


@pytest.fixture
def ray(monkeypatch):
    fake = Ray()
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft))
    for name, module in {
        "ray": fake, "ray.util": SimpleNamespace(), "ray.util.scheduling_strategies": strategies
    }.items():  # fmt: skip
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "")  # and back at the end
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        yield fake


def test_a_cluster_is_joined_quietly_and_left(ray):
    cluster = RayCluster()
    assert ray.begun == [{"address": "auto", "log_to_driver": False, "logging_level": "ERROR"}]
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    (node,) = cluster.nodes()
    assert (node.id, node.address, node.labels) == ("a", "10.0.0.1", ("left", "A100"))
    assert (node.cpus, node.gpus, node.memory_bytes) == (8.0, 2.0, 7)
    assert node.names == ("local", "cpu", "cuda:0", "left", "A100")
    cluster.close()
    assert ray.ended == 1


def test_a_connection_of_the_caller_stays_open(ray, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: True, raising=False)
    RayCluster().close()
    assert ray.begun == [] and ray.ended == 0


def test_a_host_holds_its_whole_node(ray):
    cluster = RayCluster()
    (node,) = cluster.nodes()
    ray.say = lambda what, given, command: (what, command)
    assert cluster.host(node, ("sweep",)) == (NodeHost, ("sweep",))
    assert ray.options[-1] == {
        "num_cpus": 8.0, "num_gpus": 2.0, "max_restarts": 0, "max_task_retries": 0,
        "scheduling_strategy": ("a", False),
    }  # fmt: skip


def test_a_fault_of_ray_is_a_loss(ray):
    cluster = RayCluster()

    def gone():
        raise RayError("the actor died\nmore")

    with pytest.raises(LostError, match=r"^the actor died$"):
        cluster.answer(gone)
    cluster.drop("host")
    assert ray.begun[-1] == ("kill", "host", True)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (ConnectionError("no"), "RAY_AUTH_TOKEN"),
        (RuntimeError("Version mismatch: 2.60 and 2.59\nmore"), "Version mismatch: 2.60 and 2.59;"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_one_line(ray, fault, words):
    ray.fault = fault
    with pytest.raises(UsageError) as caught:
        RayCluster()
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_no_cluster_and_no_ray(ray, monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for address in (f"127.0.0.1:{port}", "nonsense", "127.0.0.1:99999999"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UsageError, match="no Ray cluster answers on this machine; start one"):
            RayCluster()
    with pytest.raises(UsageError, match=f"no Ray cluster answers at ray://127.0.0.1:{port}"):
        RayCluster(f"ray://127.0.0.1:{port}")
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(UsageError, match="no Ray cluster answers"):
        RayCluster()
    assert ray.begun == []
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="pip install 'frameworktax"):
        RayCluster()


def test_executors_by_name(tmp_path):
    with pytest.raises(UsageError, match="no engine 'rya', did you mean 'ray'"):
        open_executor("rya", Path(), Reporter(), ())
    assert {place.label for place in platforms_of("local", Reporter())} >= {"local", "cpu"}
