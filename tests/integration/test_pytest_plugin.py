"""The pytest plugin: what fails, what is left open, and that it costs nothing until it is used."""

import fcntl
import inspect
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from types import SimpleNamespace

import comparison_records as made
import pytest

from frameworktax import api, comparing
from frameworktax.analysis.document import build
from frameworktax.errors import DeploymentError
from frameworktax.integrations import pytest_plugin
from frameworktax.records import Point, Subject, Workload

PLUGIN = ("-p", "frameworktax.integrations.pytest_plugin", "-p", "no:cacheprovider")


class NoMeasuring:
    """A plugin: what is asked to be measured comes from made-up records."""

    @pytest.fixture(autouse=True)
    def no_measuring(self, monkeypatch):
        def measure(model, inputs=None, **options):
            signature.bind(model, inputs, **options)
            name = made.NEW if model.get("new") else made.OLD
            more = {key: value for key, value in model.items() if key != "new"}
            records = made.session(name, **more)
            if options["runtimes"] == ["null"]:
                floor = Point(workload=Workload(model="null"), runtime="null")
                records = [records[0], Subject(session=name, point=floor, paradigm="floor")]
                records += made.data.blocks(floor, 200, session=name)
            return SimpleNamespace(run=build(records))

        def again(folder, *, gate, across, time_budget):
            if folder.name == "changed":
                raise DeploymentError("changed: model.bin was changed; rebuild it")
            factor = {"slow": 1.2, "same": 1.0}[folder.name]
            before = made.session(made.OLD)
            after = made.session(made.NEW, factors={"eager": factor})
            return comparing.compare(build(before), build(after), gate=gate, across=across)

        signature = inspect.signature(api.measure)
        monkeypatch.setattr(api, "measure", measure)
        monkeypatch.setattr(comparing, "measure_again", again)


def run_in_process_of_its_own(folder):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *PLUGIN],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": ""},
        capture_output=True,
        text=True,
    ).stdout


@pytest.fixture(scope="module", autouse=True)
def imported_before():
    """numpy's parts cannot be imported again after a run in this process."""
    import scipy.stats  # noqa: F401


@dataclass
class Project:
    """A folder of tests, run in this process: a new one would import numpy and scipy each time."""

    pytester: pytest.Pytester
    monkeypatch: pytest.MonkeyPatch

    @property
    def folder(self):
        return self.pytester.path

    def write(self, text):
        (self.folder / "test_it.py").write_text(text)

    def __call__(self, *words, ci=""):
        self.monkeypatch.setenv("CI", ci)
        words = ("-q", *PLUGIN, *words)
        return str(self.pytester.runpytest_inprocess(*words, plugins=[NoMeasuring()]).stdout)


@pytest.fixture
def project(pytester, monkeypatch):
    pytester.makeini("[pytest]\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return Project(pytester, monkeypatch)


def test_a_check_fails_only_on_what_is_proven(project):
    # the made-up session has a tax share of 0.618 (0.610 to 0.625)
    project.write(
        "def test_below(frameworktax):\n    frameworktax.assert_tax({}, below=0.7)\n"
        "def test_above(frameworktax):\n    frameworktax.assert_tax({}, below=0.5)\n"
        "def test_open(frameworktax):\n    frameworktax.assert_tax({}, below=0.615)\n"
        "def test_unmeasured(frameworktax):\n"
        "    frameworktax.assert_tax({'sampled': False}, below=0.5)\n"
        "def test_crash(frameworktax):\n"
        "    frameworktax.assert_tax({'lost': ('eager',)}, below=0.5)\n"
        "def test_no_share(frameworktax):\n    frameworktax.assert_tax({}, below=50)\n"
        "def test_no_layers(frameworktax):\n    frameworktax.layer('encoder')\n"
    )
    told = project()
    assert "4 failed, 3 passed, 2 warnings" in told, told
    assert "no layers were measured" in told
    assert "is above 0.5" in told and "test_above" in told
    assert "eager was not measured: signal 11" in told
    assert "below=50 is no share" in told
    assert "0.618 (0.610 to 0.625) is on both sides of 0.615" in told
    assert "frameworktax doctor" in told  # of the tax that was not measured


@pytest.mark.parametrize(
    ("way", "says"),
    [("skip", "1 skipped"), ("xfail", "1 xfailed"), ("fail", "1 failed")],
)
def test_what_noise_leaves_open_is_for_the_user_to_say(project, way, says):
    project.write("def test_open(frameworktax):\n    frameworktax.assert_tax({}, below=0.615)\n")
    assert says in project("-o", f"frameworktax_inconclusive={way}")


def test_a_wrong_setting_is_seen_where_nothing_is_open(project):
    project.write("def test_below(frameworktax):\n    frameworktax.assert_tax({}, below=0.7)\n")
    told = project("-o", "frameworktax_inconclusive=x")
    assert "1 error" in told and "'x'; choose warn, skip, xfail, fail" in told


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ("assert_tax({'batches': (1, 2)}, below=0.9)", "2 points"),
        ("assert_latency_within({'batches': (1, 2)})", "2 points"),
        ("assert_latency_within({}, gate=-1)", "between 0 and 1"),
        ("assert_latency_within({}, metric='speed')", "'speed'"),
        ("assert_latency_within({}, runtime='null')", "no runtime but null"),
    ],
)
def test_what_is_no_check_is_refused_without_a_baseline_too(project, check, says):
    project.write(f"def test_it(frameworktax):\n    frameworktax.{check}\n")
    told = project("--frameworktax-update")
    assert "1 failed" in told and says in told
    assert not (project.folder / "frameworktax-baselines.json").exists()


def test_two_checks_of_one_test_do_not_share_a_baseline(project):
    check = "    frameworktax.assert_latency_within({}, metric='%s')\n"
    project.write("def test_it(frameworktax):\n" + check % "latency" + check % "tax")
    assert "1 passed" in project("--frameworktax-update")  # of one model: one baseline is enough
    project.write("def test_it(frameworktax):\n" + 2 * (check % "latency"))
    told = project("--frameworktax-update")
    assert "1 failed" in told and "a second check of test_it.py::test_it; give each a name" in told


def test_latency_against_a_baseline_in_a_file(project):
    check = (
        "def test_latency(frameworktax):\n"
        "    frameworktax.assert_latency_within({}, gate=0.05)\n"
        "    frameworktax.assert_latency_within({}, gate=0.05, name='again')\n"
    )
    project.write(check)
    told = project()
    assert "run with --frameworktax-update" in told
    assert "1 passed, 2 warnings" in told
    assert "1 passed, 2 warnings" in project(ci="false")
    told = project(ci="true")  # nobody reads a warning there
    assert "1 failed" in told and "run with --frameworktax-update" in told
    assert "1 passed" in project("--frameworktax-update", ci="true")
    kept = project.folder / "frameworktax-baselines.json"
    names = set(json.loads(kept.read_text())["baselines"])
    assert names == {"test_it.py::test_latency", "test_it.py::test_latency[again]"}
    assert project().splitlines()[-1].startswith("1 passed in")
    project.write(check.replace("{}", "{'new': True, 'factors': {'eager': 1.2}}", 1))
    told = project()
    assert "1 failed" in told and "+20.0 %" in told and "beyond the gate of 0.05" in told
    project.write(check.replace("{}", "{'new': True, 'host': 1.3}", 1))
    told = project()
    assert "1 passed, 1 warning" in told and "noise reaches beyond 5 %" in told
    assert "test_it.py:1: InconclusiveWarning" in told
    kept.write_text('{"schema": "frameworktax.baselines", "version": 9}')
    told = project()
    assert "1 failed" in told and "frameworktax-baselines.json is no file of baselines" in told
    assert "another exception" not in told
    project.write(check.replace("{}", "{'lost': ('eager',)}", 1))
    assert "is no file of baselines" in project()  # before anything is measured
    kept.unlink()
    assert "run with --frameworktax-update" in project(ci="true")


@pytest.mark.parametrize("name", ["test_it", "test_it[a@b]"])
def test_a_baseline_has_no_group_of_a_worker_in_its_name(name):
    for added in ("", "@alone"):  # as xdist does for --dist loadgroup
        test = SimpleNamespace(nodeid=f"test_it.py::{name}{added}", name=name)
        assert pytest_plugin._name_of(test) == f"test_it.py::{name}"


def test_baselines_that_are_written_at_once_are_all_kept(tmp_path):
    path, run = tmp_path / "baselines.json", build(made.session(made.OLD))
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # another worker writes
    waiting = threading.Thread(target=pytest_plugin._write, args=(path, "second", run))
    waiting.start()
    waiting.join(0.1)
    path.write_text('{"schema": "frameworktax.baselines", "version": 1, "baselines": {"first": 1}}')
    os.close(folder)
    waiting.join()
    assert set(pytest_plugin._read(path)) == {"first", "second"}


def test_a_deployment_is_held_to_its_manifest(project):
    names = ("same", "slow", "changed")
    check = "def test_{0}(frameworktax):\n    frameworktax.assert_deployment('{0}')\n"
    project.write("".join(map(check.format, names)))
    told = project()
    assert "2 failed, 1 passed in" in told
    assert "latency of slow" in told and "beyond the gate of 0.05" in told
    assert "model.bin was changed" in told


def test_nothing_is_imported_before_a_test_asks(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_nothing():\n"
        "    loaded = {m.removeprefix('frameworktax.') for m in sys.modules if 'tax.' in m}\n"
        "    own = {'integrations', 'integrations.pytest_plugin', 'version'}\n"
        "    assert loaded == own | {'measure', 'sweep', 'optimize'}\n"
        "    assert not {'torch', 'numpy', 'pydantic', 'scipy'} & set(sys.modules)\n"
    )
    assert "1 passed" in run_in_process_of_its_own(tmp_path)
