"""The Ray executor without Ray: which node fits, what comes home, what was lost, how it ends."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace

import pytest

from frameworktax import store
from frameworktax.errors import FrameworktaxError, UsageError, WorkerError
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
    to_json,
)
from frameworktax.sweep import ray as ray_module
from frameworktax.sweep.executor import Job
from frameworktax.sweep.ray import RayExecutor, RemoteJob, shipped
from frameworktax.sweep.ray_cluster import LostError, Node, labels
from frameworktax.sweep.ray_node import Order
from frameworktax.sweep.study import load

OWN = {"frameworktax": "1", "python": "3.11.7", "torch": "2.13.0"}
SAME = {**OWN, "torch_build": "2.13.0+cpu", "memory_bytes": 8}
LEFT = Node(id="a", address="10.0.0.1", labels=("left",), about=SAME)
RIGHT = Node(id="b", address="10.0.0.2", labels=("right", "big"), about=SAME)


def job(name="j", platform="left", model="mlp") -> Job:
    point = Point(workload=Workload(model=model), runtime="null", platform=f"cpu@{platform}")
    return Job(
        name=name, points=(point,), platform=platform, processes=1, until=0.1, budget_s=5.0
    )  # fmt: skip


def shard(session="20260101T000000-a", of=None) -> bytes:
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
    return lines(*map(to_json, records))


def lines(*said) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in said)


def end(session="20260101T000000-a", **error) -> bytes:
    return lines({"end": {"session": session, "wall_ns": 7, "spent_ns": {"blocks": 3}, **error}})


WHOLE = [(shard() + end(), None)]
BEGUN = (shard(), None)
OVER = (b"", "its process ended with code 130; ")


class Cluster:
    """A cluster whose nodes answer by a script: node id → answers, an exception for a loss."""

    def __init__(self, nodes=(LEFT, RIGHT), script=None):
        self.alive = list(nodes)
        self.script = {key: deque(value) for key, value in (script or {}).items()}
        self.asked = []
        self.orders = []
        self.dropped = []
        self.closed = False

    def nodes(self):
        return list(self.alive)

    def host(self, node, command):
        assert command == ("sweep",)
        return node.id

    def ask(self, host, method, *arguments):
        self.asked.append((host, method))
        if method == "begin":
            self.orders.append(json.loads(arguments[0]))
        if method == "stop" and (rest := self.script.get(f"{host} after stop")):
            self.script[host] = rest
        return (host, method, len(self.asked))

    def ready(self, promises, wait_s):
        kept = [p for p in promises if p[1] == "stop" or self.script.get(p[0])]
        return kept[:1]

    def answer(self, promise):
        found = self.script[promise[0]].popleft()
        if isinstance(found, Exception):
            raise found
        return found

    def drop(self, host):
        self.dropped.append(host)

    def close(self):
        self.closed = True


class Listener(Reporter):
    def __init__(self):
        self.said = []

    def phase(self, text):
        self.said.append(text)

    say = phase


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_module, "NODES_EVERY_S", 0.0)
    monkeypatch.setattr(ray_module, "WAIT_S", 0.001)

    def make(cluster, **more):
        listener = Listener()
        executor = RayExecutor(tmp_path / "store", cluster, listener, ["sweep"], own=OWN, **more)
        return executor, listener

    return make


def test_what_a_node_is_called():
    own = {"frameworktax": "big", "ray.io/node-id": "f0", "disk": "nvme",
            "ray.io/accelerator-type": "A100"}  # fmt: skip
    resources = {"CPU": 8.0, "GPU": 1.0, "memory": 1.0, "node:10.0.0.1": 1.0, "rack7": 2.0,
                 "node:__internal_head__": 1.0, "accelerator_type:A100": 1.0,
                 "object_store_memory": 1.0}  # fmt: skip
    assert labels(own, resources) == ("big", "A100", "disk=nvme", "rack7")
    assert labels({}, {"CPU": 1.0}) == ()


def test_platforms_name_the_labels_and_share_hosts(made):
    cuda = {**SAME, "torch_build": "2.13.0+cu130"}
    beside = Node(id="c", address="10.0.0.1", labels=("big",), gpus=1.0, about=cuda)
    executor, _ = made(Cluster([LEFT, RIGHT, beside]))
    found = {place.label: (place.device, place.slots) for place in executor.platforms()}
    assert found == {
        "local": ("cpu", 2), "cpu": ("cpu", 2), "left": ("cpu@left", 1), "right": ("cpu@right", 1),
        "big": ("cpu@big", 2), "cuda:0": ("cuda:0", 1),
    }  # fmt: skip
    hosts = {place.label: place.host for place in executor.platforms()}
    assert hosts["left"] == hosts["cuda:0"] != hosts["right"]


def test_a_label_that_no_node_has_is_refused_with_those_that_are(made):
    executor, _ = made(Cluster())
    devices = {place.label: place.device for place in executor.platforms()}
    study = {"grid": {"models": "mlp", "runtimes": "null", "platform": "letf"}}
    with pytest.raises(UsageError, match="no platform 'letf', did you mean 'left'"):
        load(study, platforms=devices)
    study["grid"]["platform"] = "left"
    assert {p.point.platform for p in load(study, platforms=devices).planned} == {"cpu@left"}


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({**SAME, "torch": "2.12.0"}, "has torch 2.12.0, others 2.13.0"),
        ({**SAME, "python": "3.12.1"}, "has python 3.12.1, others 3.11.7"),
        ({**SAME, "frameworktax": None}, "has no frameworktax; install 1 there"),
        ({**SAME, "torch": None}, "has torch not at all, others 2.13.0"),
        ("does not answer within 60 s", "does not answer within 60 s"),
    ],
)
def test_other_versions_are_left_out_in_one_line(made, about, words):
    said = {"fault": about, "about": {}} if isinstance(about, str) else {"about": about}
    node = replace(LEFT, **said)
    executor, listener = made(Cluster([node, RIGHT]))
    assert "left" not in {place.label for place in executor.platforms()}
    executor.platforms()
    (line,) = listener.said
    assert line.startswith("left out: node 10.0.0.1 (left) ") and words in line
    executor, _ = made(Cluster([node]))
    with pytest.raises(UsageError, match="offers nothing to measure on: node"):
        executor.platforms()


def test_a_driver_without_torch_takes_the_first_nodes(tmp_path):
    cluster = Cluster([LEFT, replace(RIGHT, about={**SAME, "torch": "2.12.0"})])
    executor = RayExecutor(tmp_path, cluster, Listener(), ["sweep"], own={**OWN, "torch": None})
    assert {"left"} == {p.label for p in executor.platforms()} - {"local", "cpu"}


def test_records_come_home_however_they_are_cut(made, tmp_path):
    whole = shard() + lines({"phase": "measuring"}) + end()
    for size in (1, 7, 1000):
        script = [(whole[i : i + size], None) for i in range(0, len(whole), size)]
        cluster = Cluster(script={"a": script})
        executor, listener = made(cluster)
        executor.submit(job())
        (got,) = executor.completed()
        assert (got.wall_ns, got.spent_ns, got.error) == (7, {"blocks": 3}, None)
        path = tmp_path / "store" / f"{got.session}.jsonl"
        records, notes = store.read(path)
        assert not notes and len(records) == 5
        assert path.read_bytes().count(b"\n") == shard().count(b"\n") + 1  # its header
        assert listener.said == ["node 10.0.0.1 (left): measuring"]
        assert not cluster.dropped  # the next job finds its process warm
        path.unlink()
    (order,) = cluster.orders
    assert order["job"]["points"][0]["platform"] == "cpu@left" and order["code"] == {}


def test_an_error_of_a_job_keeps_its_kind(made):
    for error, kind in (({"error": "nothing"}, FrameworktaxError),
                       ({"error": "x", "fault": "out-of-memory"}, WorkerError)):  # fmt: skip
        executor, _ = made(Cluster(script={"a": [(end(**error), None)]}))
        executor.submit(job())
        (got,) = executor.completed()
        assert type(got.error) is kind and str(got.error).endswith(error["error"])
        assert getattr(got.error, "status", None) == error.get("fault")


def test_a_lost_node_ends_its_job_and_keeps_what_came(made, tmp_path):
    head = shard()[: shard().index(b'{"record": "outcome"') + 20]  # torn in the last line
    cluster = Cluster(script={"a": [(head, None), LostError("the node died")]})
    executor, _ = made(cluster)
    executor.submit(job())
    (got,) = executor.completed()
    assert isinstance(got.error, WorkerError) and got.error.status == "crashed"
    assert str(got.error) == "node 10.0.0.1 (left): was lost: the node died"
    records, notes = store.read(tmp_path / "store" / f"{got.session}.jsonl")
    assert [r.kind for r in records] == ["session", "subject", "calibration", "block"]
    assert not notes  # whole lines only
    assert cluster.dropped == ["a"]
    cluster.script = {"a": deque([(shard("20260101T000001-b") + end(), None)])}
    executor.submit(job())  # the node is back: a new host is started on it
    (again,) = executor.completed()
    assert again.error is None


@pytest.mark.parametrize(
    "records",
    [
        shard() + b'{"record":"block","session":"x"}\n',
        shard() + shard("another").split(b"\n", 1)[1],
        b'{"record":"session","session":"../../etc/x"}\n',
        shard("../../etc/x"),
    ],
)
def test_what_is_no_record_of_the_session_ends_the_job(made, tmp_path, records):
    cluster = Cluster(script={"a": [(records, None)]})
    executor, _ = made(cluster)
    executor.submit(job())
    (got,) = executor.completed()
    assert isinstance(got.error, WorkerError) and got.error.status == "crashed"
    assert {p.parent for p in tmp_path.rglob("*.jsonl")} <= {tmp_path / "store"}
    assert cluster.dropped == ["a"]


@pytest.mark.parametrize(
    "said",
    [b"no JSON\n", b'{"end": {"session": 3}}\n', b'{"end": {"session": "s", "wall_ns": "x"}}\n'],
)
def test_what_is_no_message_ends_the_job(made, said):
    executor, _ = made(Cluster(script={"a": [(said, None)]}))
    executor.submit(job())
    (got,) = executor.completed()
    assert isinstance(got.error, WorkerError) and got.error.status == "crashed"


def test_a_process_that_ends_without_a_word(made):
    why = "its process ended with code -9; MemoryError: no"
    cluster = Cluster(script={"a": [BEGUN, (b"", why)]})
    executor, _ = made(cluster)
    executor.submit(job())
    (got,) = executor.completed()
    assert got.error.status == "crashed" and cluster.dropped == ["a"]
    assert str(got.error) == f"node 10.0.0.1 (left): {why}"


def test_one_job_at_a_time_on_a_host(made):
    beside = replace(LEFT, id="c")
    cluster = Cluster([LEFT, RIGHT, beside])
    executor, _ = made(cluster)
    for name, platform in (("1", "left"), ("2", "left"), ("3", "big"), ("4", "big")):
        executor.submit(job(name, platform))
    assert list(executor.completed(0.0005)) == []
    assert [m for m in cluster.asked if m[1] == "begin"] == [("a", "begin"), ("b", "begin")]
    assert executor.cancel("4") and not executor.cancel("4")
    cluster.script = {"a": deque([BEGUN])}
    assert list(executor.completed(0.0005)) == []
    assert not executor.cancel("1") and not cluster.dropped  # it runs
    assert executor.cancel("3") and not executor.cancel("3")  # it waits for its node to be free
    assert cluster.dropped == ["b"]
    cluster.script = {"a": deque([(end(), None)])}
    assert next(executor.completed()).job.name == "1"
    assert list(executor.completed(0.0005)) == []
    assert [m for m in cluster.asked if m[1] == "begin"][2:] == [("a", "begin")]


def test_nodes_join_and_leave(made, monkeypatch):
    cluster = Cluster([LEFT])
    executor, _ = made(cluster)
    executor.platforms()
    executor.submit(job("r", "right"))
    assert list(executor.completed(0.0005)) == [] and not cluster.asked
    cluster.alive.append(RIGHT)
    cluster.script = {"b": deque(WHOLE)}
    assert next(executor.completed()).error is None
    cluster.alive = [LEFT]
    executor.submit(job("r2", "right"))
    assert list(executor.completed(0.0005)) == []  # it waits until the campaign takes it back
    assert executor.cancel("r2") and list(executor.completed()) == []
    cluster.alive = []
    assert executor.platforms() == []


def test_a_job_that_could_not_begin_was_not_lost(made, monkeypatch):
    dead = LostError("the node is dead")
    cluster = Cluster([RIGHT], script={"b": [dead, dead, *WHOLE]})
    executor, listener = made(cluster)
    executor.submit(job("r", "right"))
    assert list(executor.completed(0.0005)) == [] and len(cluster.orders) == 1  # not yet again
    monkeypatch.setattr(ray_module, "AGAIN_S", 0.0)
    (got,) = executor.completed()
    assert got.error is None and got.job.name == "r" and len(cluster.orders) == 3
    assert cluster.dropped == ["b", "b"] and not any("left out" in said for said in listener.said)

    cluster.script = {"b": deque([dead] * ray_module.TRIES)}
    executor.submit(job("r2", "right"))
    assert list(executor.completed(0.05)) == []
    assert listener.said[-1] == "left out: node 10.0.0.2 (right, big) was lost: the node is dead"
    assert executor.platforms() == [] and len(cluster.orders) == 3 + ray_module.TRIES
    assert executor.cancel("r2")


def test_a_node_that_is_busy_is_named_once(made, monkeypatch):
    executor, listener = made(Cluster())
    executor.submit(job())
    assert list(executor.completed(0.0005)) == []
    monkeypatch.setattr(ray_module, "BUSY_S", -1.0)
    assert list(executor.completed(0.0005)) == list(executor.completed(0.0005)) == []
    (said,) = listener.said
    assert LEFT.address in said


def test_the_end_takes_home_what_there_is(made, tmp_path):
    cluster = Cluster(script={"a": [(shard()[:900], None)]})
    cluster.script["a after stop"] = deque([(shard()[900:], None), OVER])
    executor, _ = made(cluster)
    executor.submit(job())
    executor.submit(job("waits"))
    assert list(executor.completed(0.0005)) == []
    executor.close()
    assert ("a", "stop") in cluster.asked
    assert cluster.dropped == ["a"] and cluster.closed
    (path,) = (tmp_path / "store").iterdir()
    assert len(store.read(path)[0]) == 5
    assert list(executor.completed()) == []


def test_code_is_sent_only_where_it_may(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("def build(): ...\n")
    (tmp_path / "net.onnx").write_bytes(b"x")
    points = job(model="own.py:build").points
    assert shipped(points, allow_code=True) == {"own.py": "def build(): ...\n"}
    assert shipped(job(model="package.own:build").points, allow_code=True) == {}
    assert shipped(job().points, allow_code=False) == {}
    for model, allowed, word in (
        ("own.py:build", False, "--allow-code"),
        (f"{tmp_path}/own.py:build", True, "go to its folder"),
        ("../own.py:build", True, "go to its folder"),
        ("gone.py:build", True, "cannot read gone.py"),
        ("onnx:net.onnx", True, "path from the root"),
    ):
        with pytest.raises(UsageError, match=word):
            shipped(job(model=model).points, allow_code=allowed)
    executor, _ = made(Cluster())
    with pytest.raises(UsageError, match="--allow-code"):
        executor.submit(job(model="own.py:build"))


def test_a_line_without_end_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(ray_module, "LINE_BYTES", 10)
    one = RemoteJob(tmp_path, Order(job=job(), code={}), LEFT, Listener())
    with pytest.raises(ValueError, match="without end"):
        one.feed(b"x" * 11)
