"""The suite for a GPU, with fakes: its plan, its order, what it writes, and what it calls ok."""

import json
import math
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import gpu_results
import gpu_suite
import gpu_wheels
from frameworktax import api
from frameworktax.analysis.whatif.formulas import (
    GRAPHED,
    Case,
    WhatIf,
    answer,
    errors_shown,
)
from frameworktax.records import Estimate, Measurement, Workload
from gpu_suite import DRY, FULL, PARTS, Part, Suite, judged, plan

QUICK = Part(name="quick", command=("-c", "1"), seconds=60, least_s=20)
LONG = Part(
    name="long", command=("-m", "x", "{device}", "{budget}", "{out}/long.json"), seconds=100,
    least_s=50, setup_s=20, measures=True,
)  # fmt: skip
LAST = replace(LONG, name="last")


# --- the plan -------------------------------------------------------------------------------------


def test_what_says_most_comes_first_and_the_rest_is_left_out():
    assert plan([QUICK, LONG, LAST], 260) == {"quick": 60, "long": 100, "last": 100}
    assert plan([QUICK, LONG, LAST], 230) == {"quick": 60, "long": 100, "last": 70}
    assert plan([QUICK, LONG, LAST], 200) == {"quick": 60, "long": 140}  # 40 s prove nothing
    assert plan([QUICK, LONG, LAST], 90) == {"quick": 60}
    assert plan([QUICK, LONG, LAST], 10) == {}


def test_time_to_spare_goes_to_measuring_up_to_twice_the_need():
    assert plan([QUICK, LONG, LAST], 360) == {"quick": 60, "long": 150, "last": 150}
    assert plan([QUICK, LONG, LAST], 3600) == {"quick": 60, "long": 200, "last": 200}


def test_ten_minutes_hold_the_telling_parts_in_the_order_of_the_issue():
    found = plan(PARTS, 600 - gpu_suite.RESERVE_S)
    assert list(found)[:4] == ["method", "bert-base", "resnet-50", "paper"]
    assert sum(found.values()) <= 600 - gpu_suite.RESERVE_S
    assert {"method", "bert-base", "resnet-50", "paper", "inductor", "tests"} <= set(
        plan(PARTS, 1500)
    )


def test_an_hour_is_for_the_part_that_runs_only_where_it_is_named():
    assert FULL not in PARTS
    assert plan([FULL], 3600 - gpu_suite.RESERVE_S)["full"] > 3500
    studies = FULL.command[3 : FULL.command.index("--scale")]
    assert set(studies) == {*(f"figure-{n}" for n in (1, 3, 4, 5, 6, 7, 8, 9)), "table-3"}
    assert "full" in FULL.command  # the scale
    # Redrawn at home with the same studies.
    assert gpu_results.REPRODUCED.keys() == {"paper", "full"}


def test_a_time_budget_leaves_room_for_setting_up_and_for_writing():
    for part in (*PARTS, *DRY, FULL):
        words = gpu_suite.filled(part, part.seconds, Path("/o"), "cuda:0")
        assert not any("{" in word for word in words)
        if part.measures:
            budget = int(words[words.index("--time-budget") + 1].removesuffix("s"))
            assert part.setup_s + budget <= part.seconds
    command = gpu_suite.filled(PARTS[1], 150, Path("/o"), "cuda:0")
    assert command[command.index("--device") + 1] == "cuda:0"
    assert command[command.index("--store") + 1] == "/o/bert-base-store"


# --- running --------------------------------------------------------------------------------------


def estimate(value):
    return {"value": value, "low": value, "high": value}


def point(
    runtime="eager", *, kernel=1e6, method="device-profile", batch=1, model="bert-base", **workload
):
    given = Workload(model=model, batch=batch, precision="float16", **workload)
    return {
        "workload": asdict(given),
        "runtime": runtime,
        "status": "ok",
        "latency_ns": estimate(4e6),
        "pipelined_ns": estimate(3.5e6),
        "kernel_ns": estimate(kernel) if kernel else None,
        "sm_activity": estimate(0.5),
        "warp_occupancy": estimate(0.125),
        "bill_method": method if kernel else None,
        "notes": [],
    }


class Machine:
    """Runs nothing: each command takes scripted time and leaves scripted points."""

    def __init__(self, out, *, takes=None, codes=None, points=None):
        self.out, self.now = out, 0.0
        self.takes, self.codes = takes or {}, codes or {}
        self.points = points or {}
        self.ran, self.summaries = [], []

    def clock(self):
        return self.now

    def execute(self, command, limit_s, log):
        name = log.stem
        self.ran.append((name, round(limit_s)))
        file = self.out / "summary.json"
        self.summaries.append(json.loads(file.read_text()) if file.exists() else None)
        self.now += min(limit_s, self.takes.get(name, 10))
        if name in self.points:
            found = json.dumps({"measurements": self.points[name]})
            (self.out / f"{name}.json").write_text(found)
        return self.codes.get(name, 0), '{"check": "spin", "ok": true, "result": "1"}\n3 passed'


def run(out, parts=(QUICK, LONG, LAST), total_s=260, again=False, **script):
    machine = Machine(out, **script)
    suite = Suite(out, machine.execute, machine.clock)
    suite.run(parts, total_s, again=again)
    return machine, suite


def test_time_that_a_part_leaves_goes_to_the_next(tmp_path):
    points = {"long": [point()], "last": [point()]}
    machine, suite = run(tmp_path, takes={"quick": 10, "long": 150}, points=points)
    # 60 planned and 10 taken: the 50 left are shared by the two that measure
    assert machine.ran == [("quick", 60), ("long", 125), ("last", 125)]
    assert suite.ok


def test_it_writes_after_each_part(tmp_path):
    (tmp_path / "gpu").mkdir()
    machine, _ = run(tmp_path / "gpu", points={"long": [point()], "last": [point()]})
    assert [len(one["checks"]) if one else 0 for one in machine.summaries] == [0, 1, 2]
    with tarfile.open(tmp_path / "gpu.tar.gz") as packed:
        assert "gpu/summary.json" in packed.getnames()


def test_a_part_whose_results_cannot_be_read_is_a_row_and_the_others_run(tmp_path):
    odd = [{"runtime": "eager"}]  # a document of another form
    machine, suite = run(tmp_path, points={"long": odd, "last": [point()]})
    assert [name for name, _ in machine.ran] == ["quick", "long", "last"]
    assert [row["ok"] for row in suite.summary["checks"]] == [True, False, True]
    assert "KeyError" in suite.summary["checks"][1]["result"]


def test_a_row_with_words_of_a_library_behind_it_is_read_and_one_cut_short_is_not():
    row = '{"check": "spin", "ok": true, "result": "1"}'
    text = f'{row}[W1129 a warning]\nno row\n{row}\n{{"torch": 1}}\n{{"check": "cut'
    assert [one["check"] for one in gpu_suite.rows_in(text, "check")] == ["spin", "spin"]


def test_a_suite_that_is_killed_while_it_writes_leaves_what_it_wrote_before(tmp_path, monkeypatch):
    out = tmp_path / "gpu"
    out.mkdir()
    run(out, parts=[QUICK])
    kept = out / "summary.json", tmp_path / "gpu.tar.gz"
    before = [path.read_bytes() for path in kept]

    def killed(self, *given, **named):
        open(self if isinstance(self, Path) else self.name, "wb").close()  # it had begun
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "write_text", killed)
        run(out, parts=[QUICK], again=True)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tarfile.TarFile, "add", killed)
        gpu_suite.archive(out, kept[1])
    assert [path.read_bytes() for path in kept] == before


def test_what_is_done_is_not_run_again_unless_it_is_named(tmp_path):
    out = tmp_path / "gpu"
    out.mkdir()
    points = {"long": [point()], "last": [point()]}
    first, _ = run(out, total_s=165, takes={"quick": 60, "long": 100}, points=points)
    assert [name for name, _ in first.ran] == ["quick", "long"]
    second, suite = run(out, points=points)
    assert [name for name, _ in second.ran] == ["last"]
    assert suite.summary["left_out"] == {}
    third, suite = run(out, (LONG,), again=True, points=points)
    assert [name for name, _ in third.ran] == ["long"]
    assert [row["part"] for row in suite.summary["checks"]] == ["quick", "last", "long"]


def test_a_part_that_ran_out_of_time_keeps_what_it_has_and_is_not_done(tmp_path):
    out = tmp_path / "gpu"
    (out / "long-store").mkdir(parents=True)
    points = {"report": [], "long": [point(), point(batch=8, kernel=None)]}
    machine, suite = run(out, (LONG,), codes={"long": 124}, points=points)
    assert [name for name, _ in machine.ran] == ["long", "report"]
    assert (suite.ok, suite.summary["done"]) == (False, [])
    assert len(suite.summary["cells"]) == 2


def test_a_part_that_fails_at_once_is_not_judged_by_what_an_earlier_run_left(tmp_path):
    out = tmp_path / "gpu"
    out.mkdir()
    run(out, (LONG,), points={"long": [point()]})
    _, suite = run(out, (LONG,), again=True, codes={"long": 1})
    assert (suite.ok, suite.summary["cells"]) == (False, [])


def test_what_a_part_needs_and_is_missing_is_said(tmp_path):
    lacking = replace(LONG, needs=("no_such_module",))
    machine, suite = run(tmp_path, (lacking,))
    assert machine.ran == []
    assert "no_such_module" in suite.summary["left_out"]["long"]
    assert not suite.ok  # nothing was checked


@pytest.mark.parametrize(
    ("points", "ok"),
    [
        ([point()], True),
        ([point(), point("null", kernel=None)], True),  # the floor has no kernels
        ([point(), point(batch=8, kernel=None)], False),
        ([point(method="program-counter-sampling (perf-event)")], False),
        ([point("null", kernel=None)], False),
        ([{**point(), "status": "failed", "latency_ns": None}], False),
        ([point(), {**point("cuda-graph"), "status": "crashed", "latency_ns": None}], False),
        ([point(), {**point("inductor"), "status": "unavailable", "latency_ns": None}], True),
        ([], False),
    ],
)
def test_no_part_is_ok_without_kernel_time_of_every_point(points, ok):
    row, cells = judged("measure m", points, 5.0)
    assert row["ok"] is ok
    assert len(cells) == len(points)
    asked = sum(point["runtime"] != "null" for point in points)
    assert f" of {asked} points" in row["result"]


def test_no_part_is_ok_that_did_not_come_to_its_end():
    assert not judged("measure m", [point()], 5.0, "out of time; last: round 3")[0]["ok"]


def test_a_dry_run_says_that_no_kernel_time_was_read_and_fails(tmp_path, monkeypatch, capsys):
    sampled = point(method="program-counter-sampling (perf-event)", model="mlp")
    machine = Machine(tmp_path / "gpu", points={"mlp": [sampled]})
    monkeypatch.setattr(gpu_suite, "executor", lambda site: machine.execute)
    words = ["--dry-run", "--out", str(tmp_path / "gpu"), "--wheels", str(tmp_path / "none")]
    assert gpu_suite.main(words) == 1
    assert gpu_suite.NO_KERNEL_TIME in capsys.readouterr().out
    assert json.loads((tmp_path / "gpu/environment.json").read_text())["error"]


def test_a_command_beyond_its_limit_is_stopped(tmp_path):
    log = tmp_path / "log"
    code, _ = gpu_suite.run_part(["-c", "import time; time.sleep(60)"], 0.3, log, {})
    assert code == 124
    code, text = gpu_suite.run_part(["-c", "print('x' * 300_000)"], 600, log, {})
    assert (code, len(text)) == (0, 300_001)
    assert log.stat().st_size == gpu_suite.LOG_BYTES
    assert gpu_suite.why(1, "kept in /home/someone/store: full") == "exit 1: kept in …: full"


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_a_part_ends_with_the_suite_however_that_ends(tmp_path, sign):
    """One that measures on would keep the device, and the host's lock, from what comes next."""
    log = tmp_path / "log"
    part = "import os, time; print(os.getpid(), flush=True); time.sleep(3600)"
    words = f"import pathlib, gpu_suite; log = pathlib.Path({str(log)!r})\n"
    words += f"gpu_suite.run_part(['-c', {part!r}], 3600, log, {{}})"
    suite = subprocess.Popen([sys.executable, "-c", words], cwd=gpu_suite.ROOT / "benchmarks")
    while suite.poll() is None and not (log.is_file() and log.read_text().endswith("\n")):
        time.sleep(0.05)
    suite.send_signal(sign)
    suite.wait()
    process = Path("/proc") / log.read_text().strip() / "stat"
    while process.exists() and process.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.05)  # no end: the limit of the test


def test_what_the_caller_has_on_its_path_stays_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/carried")
    code = "import os; print(os.environ['PYTHONPATH'])"
    execute = gpu_suite.executor(tmp_path / "site")
    _, text = execute(["-c", code], 600, tmp_path / "log")
    assert text.strip().split(":") == [
        str(gpu_suite.ROOT / "src"),
        str(tmp_path / "site"),
        "/carried",
    ]
    recipe = (gpu_suite.ROOT / "Makefile").read_text(encoding="utf-8")
    assert "\n\t$(PYTHON) benchmarks/gpu_suite.py" in recipe  # which leaves it as it is


@pytest.mark.parametrize(
    ("missing", "remedy", "words"),
    [
        (("msgspec", "pydantic"), "make gpu-wheels", ["--dry-run"]),
        (("torch", "msgspec"), "make gpu PYTHON=", []),  # another Python is asked for
    ],
)
def test_without_what_it_needs_the_suite_says_so_and_measures_nothing(
    tmp_path, monkeypatch, capsys, missing, remedy, words
):
    monkeypatch.setattr(gpu_suite, "has", lambda name: name not in missing)
    words = [*words, "--out", str(tmp_path / "gpu"), "--wheels", str(tmp_path / "none")]
    assert gpu_suite.main(words) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert f"{', '.join(missing)} missing" in said and remedy in said
    assert not (tmp_path / "gpu/summary.json").exists()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_cache_that_cannot_be_written_is_said_before_any_part_begins(
    tmp_path, monkeypatch, capsys, is_there
):
    cache = tmp_path / "file" / "cache"
    if is_there:  # on a file system that is mounted to be read
        cache.mkdir(0o700, parents=True)
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != cache)
    else:
        cache.parent.touch()
    monkeypatch.setenv("FRAMEWORKTAX_CACHE", str(cache))
    monkeypatch.setattr(gpu_suite, "executor", lambda site: pytest.fail)
    words = ["--dry-run", "--out", str(tmp_path / "gpu"), "--wheels", str(tmp_path / "none")]
    assert gpu_suite.main(words) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert str(cache) in said and "FRAMEWORKTAX_CACHE" in said


def test_a_torch_that_reaches_no_device_is_said_before_any_part_begins(
    tmp_path, monkeypatch, capsys
):
    ran = []

    def execute(command, limit_s, log):
        ran.append(log.stem)
        return 1, "RuntimeError: The NVIDIA driver on your system is too old"

    monkeypatch.setattr(gpu_suite, "executor", lambda site: execute)
    monkeypatch.setattr(gpu_suite, "unfit", lambda *, needs_gpu: None)
    words = ["--out", str(tmp_path / "gpu"), "--wheels", str(tmp_path / "none")]
    assert gpu_suite.main(words) == 1
    assert "exit 1: RuntimeError: The NVIDIA driver" in capsys.readouterr().err
    assert ran == ["torch"]


# --- archive and wheels ---------------------------------------------------------------------------


def test_the_archive_fits_its_limit_and_drops_logs_first(tmp_path):
    noise = bytes(range(256)) * 40
    out = tmp_path / "gpu"
    for name in ("summary.json", "a-store/s.jsonl", "a.log", "site/package.py"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(noise)
    path = tmp_path / "gpu.tar.gz"
    assert gpu_suite.archive(out, path) == []
    whole = path.stat().st_size
    with tarfile.open(path) as packed:
        assert set(packed.getnames()) == {
            f"gpu/{n}" for n in ("summary.json", "a-store/s.jsonl", "a.log")
        }
    assert gpu_suite.archive(out, path, limit=whole - 1) == ["a.log"]
    assert path.stat().st_size < whole
    assert gpu_suite.archive(out, path, limit=1) == ["a.log", "a-store/s.jsonl", "summary.json"]


def test_only_wheels_of_what_is_missing_or_older_are_installed(tmp_path):
    names = ("msgspec-0.22.0-py3-none-any.whl", "rich-15.0.0-py3-none-any.whl",
             "typing_extensions-4.16.0-py3-none-any.whl",
             "another_pythons-1.0-cp27-cp27mu-any.whl")  # fmt: skip
    for name in names:
        (tmp_path / name).touch()
    here = {"rich": "15.0.0", "typing-extensions": "4.9.0"}
    found = gpu_suite.wanted_wheels(tmp_path, here.get)
    assert [wheel.name for wheel in found] == [names[0], names[2]]
    assert gpu_suite.wanted_wheels(tmp_path / "none", here.get) == []


@pytest.mark.parametrize(
    ("tags", "fit"),
    [
        ("py3-none-any", True),
        ("cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64", True),
        ("py2.py3-none-manylinux1_x86_64.manylinux_2_5_x86_64", True),
        ("cp39-abi3-manylinux_2_17_x86_64", True),
        ("cp311-cp311-manylinux2014_x86_64", False),
        ("cp312-cp312-manylinux2014_aarch64", False),
    ],
)
def test_wheels_for_another_python_or_processor_are_left(monkeypatch, tags, fit):
    """Unpacked they would be found, and fail where they are imported."""
    monkeypatch.setattr(gpu_suite, "THIS_PYTHON", "3.12")
    monkeypatch.setattr(gpu_suite.platform, "machine", lambda: "x86_64")
    assert gpu_suite.fits(f"msgspec-0.22.0-{tags}") is fit


def test_wheels_are_unpacked_without_pip_and_older_ones_are_gone(tmp_path):
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    for version in ("1.0", "2.0"):
        for wheel in wheels.glob("*.whl"):
            wheel.unlink()
        with zipfile.ZipFile(wheels / f"zz_tool-{version}-py3-none-any.whl", "w") as packed:
            packed.writestr("zz_tool/__init__.py", f"version = {version!r}")
            packed.writestr(f"zz_tool-{version}.dist-info/METADATA", f"Version: {version}\n")
            packed.writestr(f"zz_tool-{version}.data/scripts/zz-tool", "#!/bin/sh\n")
        assert gpu_suite.install_aside(wheels, site) == "unpacked: zz_tool"
    assert (site / "zz_tool/__init__.py").read_text() == "version = '2.0'"
    assert [folder.name for folder in site.glob("*.dist-info")] == ["zz_tool-2.0.dist-info"]
    assert os.access(site / "bin/zz-tool", os.X_OK)


@pytest.mark.parametrize(("code", "kept"), [(0, ["new-2-py3-none-any.whl"]), (1, ["old-1.whl"])])
def test_wheels_that_are_there_stay_unless_all_new_ones_were_gathered(
    tmp_path, monkeypatch, code, kept
):
    out = tmp_path / "wheels"
    out.mkdir()
    (out / "old-1.whl").touch()

    def download(command):
        Path(command[command.index("--dest") + 1], "new-2-py3-none-any.whl").touch()
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(gpu_wheels.subprocess, "run", download)
    monkeypatch.setattr(sys, "argv", ["gpu_wheels.py", "--out", str(out)])
    assert gpu_wheels.main() == code
    assert [wheel.name for wheel in out.iterdir()] == kept


def test_wheels_are_what_the_project_needs_beside_torch():
    text = (gpu_wheels.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = {one.partition(">")[0] for one in gpu_wheels.requirements(text)}
    assert {"msgspec", "pydantic", "nvidia-ml-py", "pytest"} <= names
    assert "transformers" not in names  # gathered alone: what it needs is there, or too large
    assert not {"torch", "numpy", "scipy"} & names
    words = gpu_wheels.command(["msgspec"], "3.12", Path("w"))
    assert words[words.index("--python-version") + 1] == "3.12"
    assert "--only-binary=:all:" in words


# --- results --------------------------------------------------------------------------------------


def packed(folder, name, summary):
    out = folder / name / "gpu"
    out.mkdir(parents=True)
    for file, data in (("summary.json", summary), ("environment.json", {"gpu": "NVIDIA H200"})):
        (out / file).write_text(json.dumps(data))
    (out / "x.log").write_text("log")
    store = out / f"{summary['done'][0]}-store"
    store.mkdir()
    (store / f"{name}.jsonl").write_text('{"schema":"frameworktax.store","version":1}\n')
    gpu_suite.archive(out, folder / f"{name}.tar.gz")
    return folder / f"{name}.tar.gz"


def summary(part, *points, ok=True, left_out=None):
    row, cells = judged(f"measure {part}", points, 1.0)
    return {
        "checks": [{**row, "part": part, "ok": ok}],
        "cells": [{**cell, "part": part} for cell in cells],
        "left_out": left_out or {},
        "done": [part],
    }


@pytest.fixture
def undrawn(monkeypatch):
    """Draw no page of a store, which is a process each: these tests look at no such page."""
    monkeypatch.setattr(gpu_results, "draw", lambda folder: [])


def test_archives_become_one_page_with_the_paper_beside(tmp_path, capsys):
    first = packed(tmp_path, "one", summary("bert-base", point("cuda-graph", kernel=None)))
    second = packed(
        tmp_path, "two", summary("bert-base", point("cuda-graph"), left_out={"tests": "no time"})
    )
    third = packed(tmp_path, "three", summary("resnet-50", point(model="resnet-50")))
    out = tmp_path / "docs"
    assert gpu_results.main([*map(str, (first, second, third)), "--out", str(out)]) == 0
    text = (out / "gpu.md").read_text()
    assert "| cuda-graph | 3.5 | 50.0% | 12.5% | 2.82 | 57.0% | 9.2% |" in text
    assert "- tests: no time" in text
    assert text.count("| cuda-graph | float16 | dense | 1 |") == 1  # the later archive's
    assert "## resnet-50" in text
    assert not list((out / "gpu").glob("*.log"))
    assert {file.name for file in (out / "gpu").glob("*-store/*")} == {"two.jsonl", "three.jsonl"}


def test_padded_sentences_are_not_set_beside_the_paper_s_dense_input(tmp_path, undrawn):
    padded = {**point("cuda-graph", length=128, input="ragged"), "pipelined_ns": estimate(9e6)}
    long = {**point("cuda-graph", length=512), "pipelined_ns": estimate(8e6)}
    points = [point("cuda-graph", length=128), padded, long]
    out = tmp_path / "docs"
    assert (
        gpu_results.main([str(packed(tmp_path, "a", summary("p", *points))), "--out", str(out)])
        == 0
    )
    text = (out / "gpu.md").read_text()
    assert "| cuda-graph | 3.5 | 50.0% | 12.5% | 2.82 | 57.0% | 9.2% |" in text
    rows = [line for line in text.splitlines() if line.startswith("| cuda-graph | float16 |")]
    inputs = [row.split(" | ")[2] for row in rows]
    assert inputs == ["length 128", "length 128, ragged", "length 512"]


def test_what_two_parts_measured_stands_beside_the_paper_from_each(tmp_path, undrawn):
    """The last one silently stood for both: 0.594 ms, where another page of the run had 1.00."""
    other = {**point("cuda-graph", length=128), "pipelined_ns": estimate(9e6)}
    parts = [summary("paper", other), summary("bert-base", point("cuda-graph"))]
    archives = [str(packed(tmp_path, str(i), one)) for i, one in enumerate(parts)]
    out = tmp_path / "docs"
    assert gpu_results.main([*archives, "--out", str(out)]) == 0
    text = (out / "gpu.md").read_text()
    assert "| cuda-graph (paper) | 9 | 50.0% | 12.5% | 2.82 | 57.0% | 9.2% |" in text
    assert "| cuda-graph (bert-base) | 3.5 | 50.0% | 12.5% | 2.82 | 57.0% | 9.2% |" in text


def test_errors_that_predictions_show_for_graphs_are_those_of_the_results():
    errors = []
    for store in sorted((Path(__file__).parents[2] / "docs/results/gpu").glob("*-store")):
        errors += gpu_results.replay_errors(api.read_store(store).run.measurements).get(
            "graphs", []
        )
    sizes = sorted(map(abs, errors))
    shown = errors_shown()[GRAPHED]
    assert shown["n"] == len(sizes)
    assert shown["median"] == pytest.approx(median(sizes), abs=5e-5)
    assert shown["p95"] == pytest.approx(sizes[math.ceil(0.95 * len(sizes)) - 1], abs=5e-5)


@pytest.mark.parametrize("damage", ["missing", "cut", "another"])
def test_an_archive_that_cannot_be_read_is_said_and_older_results_stay(tmp_path, damage, undrawn):
    archive = packed(tmp_path, "one", summary("bert-base", point()))
    out = tmp_path / "docs"
    assert gpu_results.main([str(archive), "--out", str(out)]) == 0
    bad = tmp_path / "bad.tar.gz"
    if damage == "cut":
        bad.write_bytes(archive.read_bytes()[:-40])
    elif damage == "another":
        bad.write_text("no archive")
    before = sorted(out.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        gpu_results.main([str(archive), str(bad), "--out", str(out)])
    assert str(bad) in str(ended.value) and "\n" not in str(ended.value)
    assert sorted(out.rglob("*")) == before


def test_a_page_without_kernel_time_is_a_failure(tmp_path, undrawn):
    only = packed(tmp_path, "one", summary("mlp", point(method="sampling"), ok=False))
    assert gpu_results.main([str(only), "--out", str(tmp_path / "docs")]) == 1


def measured(runtime, batch, latency, host, kernel, launches=60):
    def exact(value):
        return Estimate(value=value, low=value, high=value, n=5)

    return Measurement(
        workload=Workload(model="m", batch=batch), runtime=runtime, paradigm="eager",
        platform="cuda:0", threads=1, status="ok", latency_ns=exact(latency),
        enqueue_ns=exact(host), kernel_ns=exact(kernel), launches=launches,
    )  # fmt: skip


def test_errors_of_the_replay_are_predicted_over_measured():
    eager = [measured("eager", n, 1_000_000.0, 950_000.0, 100_000.0 * n) for n in (1, 2, 4)]
    graphs = [answer(Case(m, [m], WhatIf(graphs=True))).latency.value for m in eager]
    replayed = [
        measured("cuda-graph", m.workload.batch, predicted / 1.1, 9_000.0, 100_000.0)
        for m, predicted in zip(eager, graphs, strict=True)
    ]
    found = gpu_results.replay_errors([*eager, *replayed])
    assert found["graphs"] == pytest.approx([0.1] * 3)
    assert gpu_results.replay_errors([]) == {}
