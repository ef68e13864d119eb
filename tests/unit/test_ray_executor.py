"""The Ray executor by a module that stands in for Ray: what it asks, what comes home, its end."""

from __future__ import annotations

import json
import os
import pickle
import re
import socket
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from sample_records import to_json

from frameworktax import store
from frameworktax.errors import FrameworktaxError, StoreError, UsageError, WorkerError
from frameworktax.measure.plan import Plan
from frameworktax.measure.reporter import Reporter
from frameworktax.records import (
    Block,
    Calibration,
    Environment,
    Outcome,
    Point,
    Session,
    Subject,
    Workload,
)
from frameworktax.store.write import FIRST
from frameworktax.sweep import plan as plan_module
from frameworktax.sweep import ray as ray_module
from frameworktax.sweep import run
from frameworktax.sweep.executor import Done, Job, Platform, lost, open_executor
from frameworktax.sweep.grid import shipped
from frameworktax.sweep.node import News, NodeHost
from frameworktax.sweep.ray import RayExecutor
from frameworktax.sweep.study import load

HOUR_S = 3600.0


def a_node(name, address, label, kind="", **more):
    return {
        "NodeID": name, "Alive": True, "NodeManagerAddress": address,
        "Labels": {"frameworktax": label, "disk": "nvme", "ray.io/accelerator-type": kind},
        "Resources": {"CPU": 8.0, "rack7": 1.0}, **more,
    }  # fmt: skip


LEFT = a_node("a", "10.0.0.1", "left")
RIGHT = a_node("b", "10.0.0.2", "right", "big", Resources={"memory": 8.0})


def job(name="j", platform="left", model="mlp") -> Job:
    point = Point(workload=Workload(model=model), runtime="null", platform=f"cpu@{platform}")
    return Job(name=name, platform=platform, plan=Plan(points=(point,), budget_s=5.0))


SESSION = "20260101T000000-a"


def shard(session=SESSION, of=None) -> bytes:
    point = (of or job()).points[0]
    where = Environment(host="n", system="s", python="3", cpu="c", cores=1)
    records = [
        Session(session=session, started="t", version="1", command=("x",), environment=where),
        Subject(session=session, point=point, paradigm="floor"),
        Calibration(session=session, round=0, latency_ns=(1, 2)),
        Block(session=session, point=point.key(), process=0, round=0, latency_ns=(5, 6),
              pipelined_ns=9, pipelined_calls=2, cpu_ns=11),
        Outcome(session=session, point=point.key(), process=0, status="ok"),
    ]  # fmt: skip
    return FIRST + b"\n" + b"".join(json.dumps(to_json(r)).encode() + b"\n" for r in records)


def news(data=b"", done=None, session=SESSION, notes=()) -> News:
    data = data.removeprefix(FIRST + b"\n")  # it is not asked for
    return News(session=session if data else "", data=data, notes=notes, done=done)


def end(error=None) -> Done:
    return Done(job=job(), session="there", wall_ns=7, error=error)


WHOLE = [news(shard(), end())]
BEGUN = news(shard())
DONE = news(done=end())


class RayError(Exception):
    pass


class Ray(SimpleNamespace):
    """A module whose nodes answer by a script: node id → answers, an exception for a loss."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, nodes=(LEFT, RIGHT), script=None):
        super().__init__(fault=None)
        self.alive = list(nodes)
        self.script = {key: deque(value) for key, value in (script or {}).items()}
        self.begun = []
        self.options = []
        self.asked = []
        self.orders = []
        self.dropped = []
        self.ended = 0

    def is_initialized(self):
        return False

    def init(self, **arguments):
        self.begun.append(arguments)
        if self.fault is not None:
            raise self.fault

    def shutdown(self):
        self.ended += 1

    def nodes(self):
        return [*self.alive, a_node("dead", "10.0.0.9", "dead", Alive=False)]

    def remote(self, kind):
        assert kind is NodeHost

        def options(**given):
            self.options.append(given)
            return SimpleNamespace(remote=lambda *more: self.start(given, *more))

        return SimpleNamespace(options=options)

    def start(self, given, command, wanted):
        assert command == ("sweep",) and "torch" in wanted
        return Host(self, given["scheduling_strategy"][0])

    def wait(self, promises, timeout, num_returns=1):
        assert promises
        kept = [p for p in promises if p[1] == "stop" or self.script.get(p[0])]
        return kept[:num_returns], promises

    def get(self, promise, timeout):
        found = self.script[promise[0]].popleft()
        if isinstance(found, Exception):
            raise found
        return found

    def kill(self, host, no_restart):
        assert no_restart
        self.dropped.append(host.node)


class Host:
    """An actor on a node: a promise is the node, the method and a number."""

    def __init__(self, ray, node):
        self.ray, self.node = ray, node

    def __getattr__(self, method):
        def remote(*arguments):
            self.ray.asked.append((self.node, method))
            if method == "begin":
                self.ray.orders.append(arguments)
            return (self.node, method, len(self.ray.asked))

        return SimpleNamespace(remote=remote)


class Listener(Reporter):
    def __init__(self):
        self.said = []

    def phase(self, text):
        self.said.append(text)

    say = phase


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_module, "WAIT_S", 0.001)
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft))
    monkeypatch.setitem(sys.modules, "ray.util", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "")  # and back at the end
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")

    def make(cluster, address=None):
        monkeypatch.setitem(sys.modules, "ray", cluster)
        listener = Listener()
        executor = RayExecutor(tmp_path / "store", address, listener, ["sweep"])
        executor.platforms()  # as a sweep does before it submits
        return executor, listener

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        yield make


def test_platforms_name_the_labels_and_share_hosts(made):
    beside = a_node("c", "10.0.0.1", "big", Resources={"GPU": 1.0, "memory": 9.0})
    executor, _ = made(Ray([LEFT, RIGHT, beside]))
    found = {place.label: (place.device, place.slots) for place in executor.platforms()}
    assert found == {
        "local": ("cpu", 2), "cpu": ("cpu", 2), "left": ("cpu", 1), "right": ("cpu", 1),
        "big": ("cpu", 2), "cuda:0": ("cuda:0", 1),
    }  # fmt: skip
    hosts = {place.label: place.host for place in executor.platforms()}
    assert hosts["left"] == hosts["cuda:0"] != hosts["right"]
    free = {place.label: place.memory_bytes for place in executor.platforms()}
    assert (free["left"], free["big"]) == (None, 8)


def test_a_label_that_no_node_has_is_refused_with_those_that_are(made):
    executor, _ = made(Ray())
    devices = {place.label: place.device for place in executor.platforms()}
    study = {"grid": {"models": "mlp", "runtimes": "null", "platform": "letf"}}
    with pytest.raises(UsageError, match=r"'letf'.*'left'\?"):
        load(study, platforms=devices)
    study["grid"]["platform"] = "left"
    assert {p.point.platform for p in load(study, platforms=devices).planned} == {"cpu@left"}


def test_a_cluster_without_a_fit_node_ends_the_sweep(made):
    cluster = Ray([LEFT], script={"a": [news(done=lost(job(), "crashed", "has torch 1"))]})
    executor, listener = made(cluster)
    executor.submit(job())
    assert executor.next_done(0.0005) is None
    with pytest.raises(UsageError, match=r": node .* has torch 1"):
        executor.platforms()
    assert len(listener.said) == 1 and cluster.dropped == ["a"]


def test_records_come_home_line_by_line_or_together(made, tmp_path):
    whole = shard()
    lines = whole.splitlines(keepends=True)
    for size in (1, 2, 9):
        script = [news(b"".join(lines[i : i + size])) for i in range(0, len(lines), size)]
        cluster = Ray(script={"a": [*script, news(done=end(), notes=[("phase", "measuring")])]})
        executor, listener = made(cluster)
        executor.submit(job())
        got = executor.next_done(HOUR_S)
        assert (got.wall_ns, got.session, got.error) == (7, SESSION, None)
        path = tmp_path / "store" / f"{got.session}.jsonl"
        assert len(store.read(path)[0]) == 5 and path.read_bytes() == whole
        assert listener.said == ["node 10.0.0.1 (left): measuring"]
        assert not cluster.dropped  # the next job finds its templates warm
        path.unlink()
    ((asked, code),) = cluster.orders
    assert asked.points[0].platform == "cpu@left" and code == {}


def test_an_error_of_a_job_keeps_its_kind(made):
    for error in FrameworktaxError("nothing"), WorkerError("out-of-memory", "x"):
        name = f"20260101T000000-{type(error).__name__}"
        came = pickle.loads(pickle.dumps(news(shard(name), end(error), name)))
        executor, _ = made(Ray(script={"a": [came]}))
        executor.submit(job())
        got = executor.next_done(HOUR_S)
        assert type(got.error) is type(error) and str(got.error).endswith(str(error))
        assert getattr(got.error, "status", None) == getattr(error, "status", None)


def test_a_lost_node_ends_its_job_and_keeps_what_came(made, tmp_path):
    head = shard()[: shard().index(b'{"record": "outcome"')]
    cluster = Ray(script={"a": [news(head), RayError("the node died\nmore")]})
    executor, _ = made(cluster)
    executor.submit(job())
    got = executor.next_done(HOUR_S)
    assert isinstance(got.error, WorkerError) and got.error.status == "crashed"
    assert re.fullmatch(r"node 10\.0\.0\.1 \(left\): .*: the node died", str(got.error))
    records, notes = store.read(tmp_path / "store" / f"{got.session}.jsonl")
    assert [r.kind for r in records] == ["session", "subject", "calibration", "block"]
    assert not notes
    assert cluster.dropped == ["a"]
    again = "20260101T000001-b"
    cluster.script = {"a": deque([news(shard(again), end(), again)])}
    executor.submit(job())
    assert executor.next_done(0.0005) is None  # it may be gone
    executor.platforms()  # the node is back: a new host is started on it
    got = executor.next_done(HOUR_S)
    assert got.error is None


def test_lines_that_are_no_records_are_for_readers(made, tmp_path):
    executor, _ = made(Ray(script={"a": [news(shard() + b"rubbish\n", end())]}))
    executor.submit(job())
    got = executor.next_done(HOUR_S)
    records, notes = store.read(tmp_path / "store")
    assert got.error is None and len(records) == 5 and [n.code for n in notes] == ["bad-line"]


def test_a_session_from_elsewhere_names_no_path(made, tmp_path):
    executor, _ = made(Ray(script={"a": [news(shard(), session="../../etc/x")]}))
    executor.submit(job())
    with pytest.raises(StoreError, match="cannot name a shard"):
        executor.next_done(HOUR_S)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_late_job_is_ended_with_its_host(made, monkeypatch):
    monkeypatch.setattr(ray_module, "limit_s", lambda job: -1.0)
    cluster = Ray(script={"a": [BEGUN]})
    executor, _ = made(cluster)
    executor.submit(job())
    got = executor.next_done(HOUR_S)
    assert isinstance(got.error, WorkerError) and got.error.status == "timeout"
    assert cluster.dropped == ["a"]


def test_one_job_at_a_time_on_a_host(made):
    beside = a_node("c", "10.0.0.1", "left")
    cluster = Ray([LEFT, RIGHT, beside])
    executor, _ = made(cluster)
    for name, platform in (("1", "left"), ("2", "left"), ("3", "big"), ("4", "big")):
        executor.submit(job(name, platform))
    assert executor.next_done(0.0005) is None
    assert [m for m in cluster.asked if m[1] == "begin"] == [("a", "begin"), ("b", "begin")]
    assert executor.cancel("4") and not executor.cancel("4")
    cluster.script = {"a": deque([BEGUN])}
    assert executor.next_done(0.0005) is None
    assert not executor.cancel("1") and not cluster.dropped  # it runs
    assert executor.cancel("3") and not executor.cancel("3")  # it waits for its node to be free
    assert cluster.dropped == ["b"]
    cluster.script = {"a": deque([DONE])}
    assert executor.next_done(HOUR_S).job.name == "1"
    assert executor.next_done(0.0005) is None
    assert [m for m in cluster.asked if m[1] == "begin"][2:] == [("a", "begin")]


def test_nodes_join_and_leave(made, monkeypatch):
    cluster = Ray([LEFT])
    executor, _ = made(cluster)
    executor.submit(job("r", "right"))
    assert executor.next_done(0.0005) is None and not cluster.asked
    cluster.alive.append(RIGHT)
    executor.platforms()
    cluster.script = {"b": deque(WHOLE)}
    assert executor.next_done(HOUR_S).error is None
    cluster.alive = [LEFT]
    executor.platforms()
    executor.submit(job("r2", "right"))
    assert executor.next_done(0.0005) is None  # it waits until the campaign takes it back
    assert executor.cancel("r2") and executor.next_done(HOUR_S) is None
    cluster.alive = []
    assert executor.platforms() == []


def test_a_job_that_could_not_begin_was_not_lost(made):
    beside = a_node("c", "10.0.0.3", "right")
    cluster = Ray([RIGHT, beside], script={"b": [RayError("the node is dead")], "c": WHOLE})
    executor, listener = made(cluster)
    executor.submit(job("r", "right"))
    got = executor.next_done(HOUR_S)
    assert got.error is None and got.job.name == "r" and len(cluster.orders) == 2
    assert cluster.dropped == ["b"]
    (said,) = listener.said
    assert re.fullmatch(r"left out: node 10\.0\.0\.2 \(right, big\) .*: the node is dead", said)
    assert {place.label: place.slots for place in executor.platforms()}["right"] == 1


def test_a_node_that_is_busy_is_named_once(made, monkeypatch):
    executor, listener = made(Ray())
    executor.submit(job())
    assert executor.next_done(0.0005) is None
    monkeypatch.setattr(ray_module, "BUSY_S", -1.0)
    assert executor.next_done(0.0005) is executor.next_done(0.0005) is None
    (said,) = listener.said
    assert "10.0.0.1" in said


def test_the_end_takes_home_what_there_is(made, tmp_path):
    lines = shard().splitlines(keepends=True)
    cluster = Ray(script={"a": [news(b"".join(lines[:3]))]})
    executor, _ = made(cluster)
    executor.submit(job())
    executor.submit(job("waits"))
    assert executor.next_done(0.0005) is None
    cluster.script["a"].append(news(b"".join(lines[3:])))
    executor.close()
    assert ("a", "stop") in cluster.asked
    assert cluster.dropped == ["a"] and cluster.ended == 1
    (path,) = (tmp_path / "store").iterdir()
    assert len(store.read(path)[0]) == 5
    assert executor.next_done(HOUR_S) is None


def test_code_is_sent_as_one_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("def build(): ...\n")
    points = job(model="own.py:build").points
    assert shipped(points) == {"own.py": "def build(): ...\n"}
    assert shipped(job(model="package.own:build").points) == shipped(job().points) == {}
    for model, word in (
        (f"{tmp_path}/own.py:build", "go to its folder"),
        ("../own.py:build", "go to its folder"),
        ("gone.py:build", "cannot read gone.py"),
    ):
        with pytest.raises(UsageError, match=word):
            shipped(job(model=model).points)


def test_what_is_not_on_a_node_is_refused_before_anything_is_submitted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").touch()
    (tmp_path / "bert").mkdir()
    submitted = []
    fake = SimpleNamespace(
        platforms=lambda: [Platform(label="local", device="cpu", host="a", slots=1)],
        submit=submitted.append,
        next_done=lambda wait_s: None,
        close=lambda: None,
    )
    for module in (run, plan_module):
        monkeypatch.setattr(module, "open_executor", lambda *_: fake)
    for model in ("onnx:net.onnx", "hf:./bert", "hf:bert"):
        study = {"grid": {"models": ["mlp", model], "runtimes": "eager", "batch": 1}}
        with pytest.raises(UsageError, match=rf"{model} .*{model.partition(':')[0]}:/path/to/"):
            run.sweep(study, store=tmp_path / "store", engine="ray")
        assert submitted == []
        with pytest.raises(UsageError, match=":/path/to/"):
            plan_module.plan_sweep(study, store=tmp_path / "store", engine="ray")
    for model in (f"onnx:{tmp_path}/net.onnx", f"hf:{tmp_path}/bert", "hf:owner/name", "hf:gpt2"):
        assert shipped(job(model=model).points) == {}


# --- what is asked of Ray -------------------------------------------------------------------------


def test_a_cluster_is_joined_quietly_and_left(made):
    beside = a_node(
        "c", "10.0.0.1", "left", "A100", Resources={"CPU": 8.0, "GPU": 2.0, "memory": 7.0}
    )
    cluster = Ray([beside])
    executor, _ = made(cluster)
    assert cluster.begun == [{"address": "auto", "log_to_driver": False, "logging_level": "ERROR"}]
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    places = executor.platforms()
    assert [place.label for place in places] == ["local", "cpu", "cuda:0", "left", "A100"]
    assert {place.memory_bytes for place in places} == {7}
    executor.close()
    assert cluster.ended == 1


def test_a_connection_of_the_caller_stays_open(made):
    cluster = Ray()
    cluster.is_initialized = lambda: True
    executor, _ = made(cluster)
    executor.close()
    assert cluster.begun == [] and cluster.ended == 0


def test_a_host_holds_its_whole_node(made):
    cluster = Ray(script={"a": WHOLE})
    executor, _ = made(cluster)
    executor.submit(job())
    assert executor.next_done(HOUR_S) is not None
    assert cluster.options == [{
        "num_cpus": 8.0, "num_gpus": 0.0, "max_restarts": 0, "max_task_retries": 0,
        "scheduling_strategy": ("a", False),
    }]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (ConnectionError("no"), "RAY_AUTH_TOKEN"),
        (RuntimeError("Version mismatch: 2.60 and 2.59\nmore"), "Version mismatch: 2.60 and 2.59;"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_one_line(made, fault, words):
    cluster = Ray()
    cluster.fault = fault
    with pytest.raises(UsageError) as caught:
        made(cluster)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_no_cluster_and_no_ray(made, monkeypatch, tmp_path):
    cluster = Ray()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for address in (f"127.0.0.1:{port}", "nonsense", "127.0.0.1:99999999"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UsageError, match="on this machine; start one: ray start"):
            made(cluster)
    with pytest.raises(UsageError, match=f"at ray://127.0.0.1:{port};"):
        made(cluster, f"ray://127.0.0.1:{port}")
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(UsageError, match="start one: ray start"):
        made(cluster)
    assert cluster.begun == []
    with pytest.raises(UsageError, match="pip install 'frameworktax"):
        made(None)


def test_executors_by_name():
    with pytest.raises(UsageError, match=r"'rya'.*'ray'\?"):
        open_executor("rya", Path(), Reporter(), ())
    local = open_executor("local", Path(), Reporter(), ())
    assert {place.label for place in local.platforms()} >= {"local", "cpu"}
