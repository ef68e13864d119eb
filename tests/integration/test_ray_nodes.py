"""What a node runs is what a host runs: without Ray, and with it on the loopback interface."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray_loopback import ENVIRONMENT, loopback
from sample_records import to_json

from frameworktax import store, sweep
from frameworktax.host.lock import VARIABLE
from frameworktax.measure.plan import Plan
from frameworktax.measure.reporter import Reporter
from frameworktax.records import Block, Point, Workload, record_id
from frameworktax.sweep.executor import Done, Job, LocalExecutor
from frameworktax.sweep.node import SET_BY_RAY, NodeHost, versions
from frameworktax.sweep.plan import plan, scan
from frameworktax.sweep.ray import RayExecutor
from frameworktax.sweep.study import load

TIMINGS = {
    "latency_ns", "pipelined_ns", "cpu_ns", "pipelined_calls", "setup_ns", "load_ns", "first_ns",
    "wall_ns",
    "measuring_ns", "calls_ns",
    "peak_memory_bytes", "warmup_calls", "started", "environment", "session", "notes", "samples",
    "detail", "top", "calls", "off_cpu_ns", "queued_ns", "lost", "artifact_bytes", "period_ns",
    "page_faults",
}  # fmt: skip
"""What two sessions may differ in."""
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'frameworktax[ray]'")


class Here(SimpleNamespace):
    """A module whose cluster is this host alone: every promise is kept when it is made."""

    exceptions = SimpleNamespace(RayError=OSError)

    def __init__(self):
        super().__init__(hosts=[])

    def is_initialized(self):
        return True

    def nodes(self):
        node = {"NodeID": "n", "Alive": True, "NodeManagerAddress": "here", "Resources": {}}
        return [{**node, "Labels": {"frameworktax": "here"}}]

    def remote(self, kind):
        def begun(command, wanted):
            self.hosts.append(kind(command, wanted))
            return Actor(self.hosts[-1])

        return SimpleNamespace(options=lambda **given: SimpleNamespace(remote=begun))

    def wait(self, promises, timeout, num_returns=1):
        return promises[:num_returns], promises[num_returns:]

    def get(self, promise, timeout):
        if isinstance(promise.answer, Exception):
            raise promise.answer
        return promise.answer

    def kill(self, host, no_restart):
        pass


class Actor:
    """A host whose methods are called at once."""

    def __init__(self, host):
        self.host = host

    def __getattr__(self, method):
        def remote(*arguments):
            try:
                return Promise(getattr(self.host, method)(*arguments))
            except OSError as error:
                return Promise(error)

        return SimpleNamespace(remote=remote)


class Promise:
    def __init__(self, answer):
        self.answer = answer


@pytest.fixture(autouse=True)
def private(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "run"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # a host goes to a folder of its own
    for name in SET_BY_RAY:
        monkeypatch.setenv(name, "0" if name != "OMP_NUM_THREADS" else "1")


def a_job(runtimes=("null",), **more) -> Job:
    points = tuple(
        Point(workload=Workload(model="mlp", batch=batch), runtime=runtime)
        for runtime in runtimes
        for batch in (1, 2)
    )
    plan = Plan(points=points, processes=1, until=0.5, **{"budget_s": 20.0, **more})
    return Job(name="j", platform="local", plan=plan)


def facts(folder: Path):
    """Return what a session says apart from times: by kind, point and process."""
    found = {}
    for record in store.read(folder)[0]:
        said = {k: v for k, v in to_json(record).items() if k not in TIMINGS}
        # Which rounds it takes, and which of them are sampled, depends on the times.
        said.pop("round", None)
        where = said.get("point")
        key = (record.kind, json.dumps(where, sort_keys=True), said.get("process"))
        found[key] = (said, sorted(asdict(record)))
    return found


def by(executor, *jobs) -> None:
    for job in jobs:
        executor.platforms()  # as a sweep does before it submits
        executor.submit(job)
        done = executor.next_done(600.0)
        assert done.error is None and done.wall_ns > 0
    executor.close()


def test_executors_give_the_same_records(tmp_path, monkeypatch):
    by(LocalExecutor(tmp_path / "local", "cpu", Reporter(), ["x"]), a_job())
    cluster = Here()
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: None)
    monkeypatch.setitem(sys.modules, "ray", cluster)
    monkeypatch.setitem(sys.modules, "ray.util", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    by(RayExecutor(tmp_path / "ray", None, Reporter(), ["x"]), a_job(), a_job())
    local, ray = facts(tmp_path / "local"), facts(tmp_path / "ray")
    assert local == ray
    assert {kind for kind, *_ in local} >= {"session", "subject", "block", "outcome"}
    assert len(list((tmp_path / "ray").iterdir())) == 2
    assert len(cluster.hosts) == 1  # and one process for both jobs
    assert not list(tmp_path.glob("frameworktax-node-*"))


def listen(host, until: bytes) -> tuple[bytes, Done | None]:
    """Return what a host's shard has up to a word, or its end."""
    data, done = b"", None
    while until not in data and done is None:
        news = host.take(len(data))
        data, done = data + news.data, news.done
    return data, done


def test_a_host_measures_in_a_folder_of_its_own_and_removes_it(tmp_path):
    host = NodeHost(["x"], versions())
    (folder,) = tmp_path.glob("frameworktax-node-*")
    assert folder.stat().st_mode & 0o077 == 0 and Path.cwd() == folder
    host.begin(a_job(), {"own/model.py": "x = 1\n"})
    data, done = listen(host, b"no such word")
    assert done.error is None and data.count(b'"record":"outcome"') >= 1
    assert (folder / "own" / "model.py").read_text() == "x = 1\n"
    host.stop()
    assert not folder.exists()


def test_a_host_of_another_version_begins_nothing():
    host = NodeHost(["x"], {**versions(), "torch": "0.1"})
    host.begin(a_job(), {})
    data, done = listen(host, b"no such word")
    assert data == b"" and "torch" in str(done.error) and done.error.status == "crashed"
    host.stop()


# --- with Ray ---------------------------------------------------------------------------------

STUDY = """
[study]
time_budget = "{budget}"
processes = 1
until = "50%"
[grid]
models = ["mlp"]
runtimes = ["null"{more}]
batch = [1, 2]
platform = ["left", "right"]
"""


def command(folder: Path, address: str, *words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "frameworktax", "sweep", "study.toml", "--engine", "ray", *words],
        cwd=folder, env={**os.environ, **ENVIRONMENT, "RAY_ADDRESS": address},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def measured(folder: Path) -> dict:
    study = load(folder / "study.toml", platforms=dict.fromkeys(("left", "right"), "cpu"))
    found = plan(study, scan(folder / "s"))
    return {point: one.status for point, one in found.statuses.items()}


KILLS = int(os.environ.get("FRAMEWORKTAX_RAY_KILLS", "1"))


@needs_ray
@pytest.mark.parametrize("seed", range(KILLS))
@pytest.mark.parametrize("victim", ["raylet", "driver"])
def test_a_study_over_two_nodes_one_of_which_is_killed(tmp_path, victim, seed):
    (tmp_path / "study.toml").write_text(STUDY.format(budget="40s", more=""))
    after_s = random.Random(f"{victim} {seed}").uniform(0.0, 20.0)
    with loopback(["left", "right"], 200.0) as (address, raylets):
        first = command(tmp_path, address, "--store", "s")
        pid = raylets["right"] if victim == "raylet" else first.pid
        killer = threading.Timer(after_s, os.kill, (pid, signal.SIGKILL))
        killer.start()
        out, err = first.communicate(timeout=150)
        killer.cancel()
        killer.join()
        gone = "no platform 'right'" in err  # killed before anything was asked of it
        ends = {0, 1} | ({2} if gone else set()) if victim == "raylet" else {0, -9}
        assert first.returncode in ends, (seed, err)
        assert "Traceback" not in err, (seed, err)
    with loopback(["left", "right"], 200.0) as (address, _):
        second = command(tmp_path, address, "--store", "s", "study.time_budget=100s")
        out, err = second.communicate(timeout=150)
        assert second.returncode == 0, (seed, err)
        assert "4 points measured" in out
    assert set(measured(tmp_path).values()) == {"measured"}
    records, _ = store.read(tmp_path / "s")
    lines = [line for p in (tmp_path / "s").glob("*.jsonl") for line in p.read_text().splitlines()]
    shards = len(list((tmp_path / "s").glob("*.jsonl")))
    assert len(lines) - shards == len(records) == len({record_id(r) for r in records}), seed
    wanted = {p.key() for p in measured(tmp_path)}
    assert {r.point for r in records if isinstance(r, Block)} == wanted
    wait_gone(tmp_path)


@needs_ray
def test_ray_gives_the_same_records_and_ends_with_ctrl_c(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY.format(budget="30s", more=', "eager"'))
    words = ("grid.platform=local", "grid.batch=1")
    with loopback(["left"], 200.0) as (address, _):
        ran = command(tmp_path, address, "--store", "s", *words)
        _, err = ran.communicate(timeout=150)
        assert ran.returncode == 0, err
        wrong = command(tmp_path, address, "--store", "s", "grid.platform=lfet")
        _, err = wrong.communicate(timeout=60)
        assert wrong.returncode == 2 and "did you mean 'left'" in err
        shards = set((tmp_path / "s").glob("*.jsonl"))
        longer = ("study.until=0.1%", "study.time_budget=100s")  # blocks for a minute
        ended = command(tmp_path, address, "--store", "s", "--no-resume", *words, *longer)
        until = time.monotonic() + 60
        while set((tmp_path / "s").glob("*.jsonl")) == shards and time.monotonic() < until:
            time.sleep(0.2)
        ended.send_signal(signal.SIGINT)
        _, err = ended.communicate(timeout=60)
        assert ended.returncode == 130 and "go on: frameworktax sweep" in err
        wait_gone(tmp_path)
    newest = max((tmp_path / "s").glob("*.jsonl"))
    newest.unlink()  # the interrupted one
    here = sweep(tmp_path / "study.toml", *words, store=tmp_path / "l")
    assert len(here) == 2
    assert facts(tmp_path / "s").keys() == facts(tmp_path / "l").keys()
    for key, said in facts(tmp_path / "l").items():
        if key[0] not in ("session", "parity"):
            assert facts(tmp_path / "s")[key] == said


def wait_gone(folder: Path) -> None:
    """Wait until no process runs in the folder of a node, which lies in this one."""
    for attempt in itertools.count():
        left = [p for p in Path("/proc").glob("[0-9]*/cwd") if _target(p).startswith(f"{folder}/")]
        if not left:
            return
        assert attempt < 150, left
        time.sleep(0.2)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
