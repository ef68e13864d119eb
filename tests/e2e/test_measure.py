"""The main job on real input: one session measured once, looked at from every side."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from frameworktax import store
from frameworktax.analysis.document import build
from frameworktax.cli import app
from frameworktax.measure import orphans
from frameworktax.records import BILL
from frameworktax.store import upkeep

SMALL = ("measure", "mlp", "--width", "0.1")
ASKED = ["measure", "mlp", "--width", "0.5", "--batch", "1,2"]
RUNTIMES = "eager,onnxruntime,cuda-graph,null"


@pytest.fixture(scope="module")
def session(tmp_path_factory, make_shell):
    """Return (folder, run document, terminal output) of one measured session."""
    folder = tmp_path_factory.mktemp("session")
    home, temporary = folder / "home", folder / "tmp"
    home.mkdir()
    temporary.mkdir()
    work = folder / "work"
    work.mkdir()
    shell = make_shell(work)
    options = ["--time-budget", "1800s", "--until", "95%", "--processes", "2"]
    ran = shell(
        *ASKED, "--runtimes", RUNTIMES, *options,
        *["--store", "results", "--json", "run.json", "--report", "report.html"],
        timeout=1800,
        HOME=str(home),
        TMPDIR=str(temporary),
        XDG_CACHE_HOME=str(home / ".cache"),
        FRAMEWORKTAX_CACHE=str(folder / "cache"),
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return folder, json.loads((work / "run.json").read_text()), ran


def points(run):
    return {(m["runtime"], m["workload"]["batch"]): m for m in run["measurements"]}


def test_every_runtime_that_can_is_measured(session):
    _, run, _ = session
    found = points(run)
    for runtime in RUNTIMES.split(","):
        status = "unavailable" if runtime == "cuda-graph" else "ok"
        assert {found[runtime, b]["status"] for b in (1, 2)} == {status}
    assert "GPU" in found["cuda-graph", 1]["reason"]
    assert found["cuda-graph", 1]["latency_ns"] is None


def test_numbers_hang_together(session):
    _, run, _ = session
    for m in run["measurements"]:
        if m["status"] != "ok" or m["runtime"] == "null":
            continue
        latency = m["latency_ns"]
        assert latency["low"] <= latency["value"] <= latency["high"]
        assert sum(m["bill_ns"].values()) == pytest.approx(latency["value"])
        assert set(m["bill_ns"]) <= set(BILL)
        assert m["tax_ns"]["value"] == pytest.approx(latency["value"] - m["kernel_ns"]["value"])
        share = m["tax_share"]["value"]
        assert share == pytest.approx(m["tax_ns"]["value"] / latency["value"])
        assert 0 < m["kernel_ns"]["value"] < latency["value"]
        assert len(m["samples_ns"]) == 2
        assert m["parity"]["within_tolerance"] is True
        assert m["regime"] in ("framework-bound", "mixed", "compute-bound")


def test_methods_are_named(session):
    _, run, _ = session
    found = points(run)
    for runtime in ("eager", "onnxruntime"):  # the second by machine code
        assert found[runtime, 1]["bill_method"].startswith("program-counter-sampling")
    assert found["eager", 1]["warm_overhead_ns"] is None  # its twin was not asked for
    assert "block-medians" in found["eager", 1]["latency_ns"]["method"]


def test_counts_are_those_of_the_model(session):
    _, run, _ = session
    found = points(run)
    assert found["eager", 1]["parameters"] == 8 * 512 * 513
    assert [found["eager", b]["macs"] for b in (1, 2)] == [8 * 512 * 512, 2 * 8 * 512 * 512]


def test_the_floor_is_measured(session):
    _, run, _ = session
    floor, fastest = run["harness_floor_ns"], points(run)["onnxruntime", 1]["latency_ns"]
    assert 0 < floor["value"] < fastest["value"] / 20


def test_the_document_follows_its_schema(session, here):
    _, run, _ = session
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(run, json.loads(here("schema").out))


def test_the_store_tells_the_same(session):
    folder, run, _ = session
    records, notes = store.read(folder / "work" / "results")
    assert notes == []
    again = build(records)
    assert again.headline == run["headline"]
    assert len(again.measurements) == len(run["measurements"])


def test_report_redraws_without_measuring(session, tmp_path, monkeypatch):
    folder, run, _ = session
    kept = folder / "work" / "results"
    before = sorted(p.name for p in kept.iterdir())
    monkeypatch.chdir(tmp_path)
    for suffix in ("html", "json", "md", "csv", "svg"):
        ran = CliRunner().invoke(app, ["report", str(kept), "-o", f"out.{suffix}"])
        assert (ran.exit_code, ran.output) == (0, f"written: out.{suffix}\n")
        assert (tmp_path / f"out.{suffix}").stat().st_size > 500
    assert json.loads((tmp_path / "out.json").read_text())["headline"] == run["headline"]
    assert sorted(p.name for p in kept.iterdir()) == before


def test_nothing_is_written_outside_the_chosen_folders(session):
    folder, _, _ = session
    assert [str(p) for p in (folder / "home").rglob("*") if p.is_file()] == []
    assert [str(p) for p in (folder / "tmp").rglob("*") if p.is_file()] == []
    work = folder / "work"
    assert sorted(p.name for p in work.iterdir()) == ["report.html", "results", "run.json"]
    assert [p.suffix for p in (work / "results").iterdir()] == [".jsonl"]
    assert (folder / "cache").stat().st_mode & 0o777 == 0o700
    kept = {p.name.rpartition("-")[0] for p in (folder / "cache").iterdir()} - {"machine"}
    assert kept == {"eager", "onnxruntime", "plotting"}


def test_the_terminal_tells_the_verdict_in_80_columns(session):
    _, run, ran = session
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80 or max(len(x) for x in lines if "samples in" not in x) <= 80
    assert " ".join(run["headline"].split()[:4]) in " ".join(ran.out.split())
    assert "Where the time goes" in ran.out
    assert "\x1b[" not in ran.out


TRAP = """
import os, sys
with open(os.environ["IMPORTED"], "a") as file:
    print(__name__, sys.argv, file=file)
raise ImportError("not in a second run")
"""
"""Each of these packages leaves its name and fails, where any process imports it."""


def test_what_is_exported_needs_no_model_library_again(session, shell):
    """In whatever process of a second session."""
    folder, _, _ = session
    traps, marks = shell.folder / "traps", shell.folder / "imported"
    for package in ("torch", "transformers", "torchvision"):
        (traps / package).mkdir(parents=True)
        (traps / package / "__init__.py").write_text(TRAP)
    ran = shell(
        *ASKED, "--runtimes", "onnxruntime", "--processes", "1", "--until", "90%",
        *["--time-budget", "1800s", "--json", "run.json"],
        FRAMEWORKTAX_CACHE=str(folder / "cache"),
        IMPORTED=str(marks),
        PYTHONPATH=os.pathsep.join([str(traps), os.environ.get("PYTHONPATH", "")]),
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert not marks.exists(), marks.read_text()
    found = points(json.loads((shell.folder / "run.json").read_text()))
    for m in (found["onnxruntime", 1], found["onnxruntime", 2]):
        assert m["latency_ns"] and m["tax_ns"] and m["operators"]
        assert m["parity"]["within_tolerance"] is True
        assert "reference-reused" in {note["code"] for note in m["notes"]}


def test_resume_measures_only_what_is_missing(session, shell):
    folder, _, _ = session
    ran = shell(
        *ASKED, "--resume", "--quiet", "--runtimes", "eager,onnxruntime",
        "--store", str(folder / "work" / "results"),
    )  # fmt: skip
    assert (ran.code, ran.out) == (0, "")
    shards = list((folder / "work" / "results").glob("*.jsonl"))
    assert len(shards) == 1


@pytest.mark.parametrize(
    ("came", "says"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM")],
)
def test_a_signal_keeps_what_was_measured_and_says_how_to_go_on(tmp_path, came, says):
    process, kept = _measuring(tmp_path)
    assert _scratch(tmp_path)
    process.send_signal(came)
    _, err = process.communicate()
    assert process.returncode == 128 + came
    assert "Traceback" not in err and "Warning" not in err
    last = err.strip().splitlines()[-1]
    assert last.startswith(f"frameworktax: {says}; what was measured")
    assert "--resume" in last and "frameworktax-results" in last
    records, _ = store.read(kept)
    assert any(r.kind == "block" for r in records)
    points = build(records).points
    assert points is not None and points.asked == 2  # those that were not reached are counted
    assert _scratch(tmp_path) == _children_of(process.pid) == []
    assert upkeep.check(kept).damage == ()


def test_a_killed_session_leaves_a_readable_store_and_no_processes(tmp_path, here):
    process, kept = _measuring(tmp_path, "null")  # which loads no engine: that takes seconds
    workers = _children_of(process.pid)
    assert any(map(_is_measuring, workers))
    process.kill()
    process.communicate()
    cache = tmp_path / "cache"
    # They die with their parent.
    while any(map(_is_measuring, workers)) or any(one.kept for one in orphans._all(cache)):
        time.sleep(0.1)
    assert upkeep.check(kept).damage == ()
    ran = here("report", str(kept), "--json", "-")
    assert ran.code == 0
    assert ran.json()["measurements"]
    assert _scratch(tmp_path)
    orphans.end_of_dead(cache)
    assert _scratch(tmp_path) == []


def _measuring(folder: Path, runtime: str = "eager") -> tuple[subprocess.Popen[str], Path]:
    """Return a session that would go on for a long time and has measured something; its store.

    Every warning is an error in it.
    """
    words = [*SMALL, "--runtimes", runtime, "--batch", "1,2", "--time-budget", "1800s"]
    words += ["--processes", "1", "--twin", "none"]
    process = subprocess.Popen(
        # until 0.01 %: it would go on to the last round
        [sys.executable, "-W", "error", "-m", "frameworktax", *words, "--until", "0.01%"],
        cwd=folder,
        env={**os.environ, "FRAMEWORKTAX_CACHE": str(folder / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # as a terminal starts it: a shell has what runs behind it ignore Ctrl-C, children too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    kept = folder / "frameworktax-results"
    while not _blocks(kept):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    return process, kept


def _scratch(folder: Path) -> list[Path]:
    """Return what sessions have for the time that they last."""
    return list((folder / "cache").glob(f"{orphans.NAME}*"))


def _blocks(folder: Path) -> bool:
    """Return whether a whole round is written: the floor's block alone is no measurement."""
    return sum(p.read_text().count('"record":"block"') for p in folder.glob("*.jsonl")) > 4


def _children_of(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def _is_measuring(pid: int) -> bool:
    try:
        return b"frameworktax.measure" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_list_and_doctor_speak_json(here):
    models = {row["name"] for row in here("list", "models", "--json").json()}
    assert {"bert-base", "gpt2", "resnet-50", "mlp"} <= models
    runtimes = {row["name"]: row for row in here("list", "runtimes", "--json").json()}
    assert runtimes["eager"]["available"] is True
    assert runtimes["cuda-graph"]["available"] is False and runtimes["cuda-graph"]["reason"]
    checks = here("doctor", "--json").json()
    assert {"cores", "load", "sampler", "gpu"} <= {check["code"] for check in checks}
    assert all(check["remedy"] for check in checks if check["status"] == "warning")
    assert "figure-4" in {row["name"] for row in here("list", "studies", "--json").json()}


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom frameworktax import cli\nsys.argv=['frameworktax','--help']\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "print(sorted(set(sys.modules) & {'numpy','torch','pydantic','scipy','pandas'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}
    )
    assert done.stdout.splitlines()[-1] == "[]"
