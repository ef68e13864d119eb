"""Templates: what they fork is like a started process, and nothing is left of them."""

import errno
import gc
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from fake_workers import made_bench

from frameworktax import host
from frameworktax.errors import WorkerError
from frameworktax.measure.plan import Plan
from frameworktax.measure.process import Worker
from frameworktax.measure.series import series_of
from frameworktax.measure.setup import Setup
from frameworktax.measure.template import SELDOM, Forked, Templates
from frameworktax.measure.worker import Server
from frameworktax.models import user
from frameworktax.models.user import Live, send
from frameworktax.records import Point, Workload
from frameworktax.runtimes.base import Target

LIBRARIES = ("torch",)
LIMIT_S = 900.0
"""Of a step: no outcome depends on how long one takes."""
VARIABLES = {**host.worker_environment(1), "PYTEST_CURRENT_TEST": ""}
"""With the name of the test among them, each test would begin templates of its own."""


@pytest.fixture(scope="module")
def templates():
    made = Templates()
    yield made
    made.close()


@pytest.fixture
def begin(templates, tmp_path):
    """Begin a worker, forked where a template can."""
    begun = []

    def begin(libraries=LIBRARIES, forks=True, **variables):
        worker = Worker(
            "test",
            environment={**VARIABLES, "TMPDIR": str(tmp_path / "scratch-test"), **variables},
            templates=templates if forks else None,
            libraries=libraries,
        )
        begun.append(worker)
        return worker

    (tmp_path / "scratch-test").mkdir()
    yield begin
    for worker in begun:
        worker.kill()


def load(worker, tmp_path, source, runtime="eager"):
    """Load a module of one's own, built by these lines; they may ``write`` a text."""
    lines = "".join(f"    {line}\n" for line in source.splitlines())
    path = tmp_path / "own.py"
    path.write_text(
        "import os, pathlib, signal, socket, subprocess, sys, threading, time\nimport torch\n"
        "def write(text):\n"
        f"    pathlib.Path({str(tmp_path / 'written')!r}).write_text(str(text))\n"
        f"def build():\n{lines}    return torch.nn.Linear(2, 2), torch.ones(1, 2)\n"
    )
    worker.request(
        Server.load,
        LIMIT_S,
        workload=Workload(model=f"{path}:build"),
        runtime=runtime,
        target=Target(),
        folder=str(tmp_path / "made"),
    )
    written = tmp_path / "written"
    return written.read_text() if written.exists() else None


def searched(folder: Path) -> str:
    """Return a ``PYTHONPATH`` that begins with this folder."""
    return os.pathsep.join([str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])


def number(worker) -> int:
    worker.request(Server.memory, LIMIT_S)
    return worker._process.number


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_gone(pid: int) -> bool:
    try:
        return state(pid) == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("libraries", "temporary"),
    [(LIBRARIES, "/tmp"), (("torch", "inductor", "exporter"), None)],
)
def test_what_is_forked_looks_like_what_is_started(
    begin, tmp_path, monkeypatch, libraries, temporary
):
    """Whether the shell has a ``TMPDIR`` or not."""
    if temporary is None:
        monkeypatch.delenv("TMPDIR", raising=False)
    else:
        monkeypatch.setenv("TMPDIR", temporary)
    told = []
    for forks in (True, False):
        # A template of this test alone: it begins with the shell's ``TMPDIR``.
        worker = begin(libraries, forks=forks, FRAMEWORKTAX_TEST=str(temporary))
        source = (
            "import tempfile\n"
            f"import torch{'._inductor.compile_fx' if 'inductor' in libraries else ''}\n"
            "fds = {os.readlink(f'/proc/self/fd/{n}').partition(':')[0]\n"
            "       for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')}\n"
            "mapped = {line.split()[-1] for line in open('/proc/self/maps')}\n"
            "fds -= mapped\n"  # whose symbols samples need
            "import _thread\n"
            "held = [f'{name}.{key}' for name, module in list(sys.modules.items())\n"
            "        for key, value in list(getattr(module, '__dict__', {}).items())\n"
            "        if isinstance(value, _thread.LockType) and value.locked()\n"
            "        or isinstance(value, _thread.RLock) and value._is_owned()]\n"
            "own = os.getpid()\n"
            "shown = [v for v in open('/proc/self/environ').read().split(chr(0))\n"
            "         if 'scratch-test' in v]\n"
            "command = [w for w in open('/proc/self/cmdline').read().split(chr(0))\n"
            "           if 'measure' in w]\n"
            "write([sorted(fds), sorted(held), os.getsid(0) == own, os.getpgid(0) == own,\n"
            "       shown, command, dict(sorted(os.environ.items())), tempfile.gettempdir(),\n"
            "       os.sched_getaffinity(0), torch.initial_seed(), torch.rand(3).tolist(),\n"
            "       signal.getsignal(signal.SIGINT), signal.pthread_sigmask(0, []),\n"
            "       os.getcwd(), len(os.listdir('/proc/self/task'))])"
        )
        told.append(load(worker, tmp_path, source))
        assert worker.started == ("forked" if forks else "started")
    assert told[0] == told[1]


class Drawn:
    """Writes what it draws where it is unpickled: for models that are built numbers are seeded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        numbers = "str([__import__('random').random(), __import__('numpy').random.random()])"
        return eval, (
            f"[str(__import__('pathlib').Path({str(self.path)!r}).write_text({numbers}))] * 2",
        )


def test_every_fork_draws_other_numbers(begin, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import numpy.random")  # as many a library does
    written, sent, drawn = tmp_path / "written", tmp_path / "sent", []
    send(Live("m", torch.nn.Linear(2, 2), torch.ones(1, 2), (Drawn(written),)), sent)
    for _ in range(3):
        begin(PYTHONPATH=searched(tmp_path)).request(
            Server.describe,
            LIMIT_S,
            workload=Workload(model="m"),
            device="cpu",
            batches=(),
            limit_s=1.0,
            live=str(sent),
        )
        drawn.append(eval(written.read_text()))
    assert len({one[0] for one in drawn}) == len({one[1] for one in drawn}) == 3


def test_garbage_is_collected_seldom_in_an_import_and_as_usual_in_what_is_forked(begin, tmp_path):
    path = tmp_path / "path"
    path.mkdir()
    (path / "timm.py").write_text("import gc\n\nseen = gc.get_threshold()[0]\n")
    worker = begin(("torch", "timm"), PYTHONPATH=searched(path))
    source = "import gc, timm\nwrite([timm.seen, gc.isenabled(), gc.get_threshold()])"
    assert eval(load(worker, tmp_path, source)) == [SELDOM, True, gc.get_threshold()]
    assert worker.started == "forked"


def test_only_the_libraries_asked_for_are_there(begin):
    def libraries(*asked):
        names = begin(asked).request(Server.modules, LIMIT_S)
        return {name.partition(".")[0] for name in names} & {"torch", "transformers", "torchvision"}

    assert libraries() == set()
    assert libraries("torch") == {"torch"}


def test_other_variables_have_another_template(templates):
    one, two, again = (
        templates.get({**os.environ, "FRAMEWORKTAX_TEST": value}) for value in ("one", "two", "one")
    )
    assert one is again is not two
    for template, value in ((one, b"one"), (two, b"two")):
        while not (template.is_ready or template.process.is_over):  # while it begins it has none
            time.sleep(0.01)
        variables = Path(f"/proc/{template.process.number}/environ").read_bytes()
        assert b"FRAMEWORKTAX_TEST=" + value in variables.split(b"\0")


@pytest.mark.parametrize("lacks", ["Python", "kernel"])
def test_where_what_is_forked_could_not_be_watched_it_is_started(begin, monkeypatch, lacks):
    def refused(number):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)
    if lacks == "Python":  # conda's
        monkeypatch.delattr(os, "pidfd_open")
    worker = begin()
    assert worker.request(Server.memory, LIMIT_S) > 0
    assert worker.started == "started"


@pytest.fixture
def instead_of_torch(tmp_path):
    """Return a function that writes these lines as a torch; its ``PYTHONPATH``.

    Torch itself takes seconds to import.
    """

    def written(lines):
        (tmp_path / "packages").mkdir()
        cuda = "types.SimpleNamespace(is_initialized=bool, _is_in_bad_fork=bool)"
        (tmp_path / "packages" / "torch.py").write_text(f"import types\ncuda = {cuda}\n{lines}")
        return searched(tmp_path / "packages")

    return written


def test_a_library_that_cannot_be_imported_leaves_it_to_the_started_process(
    begin, instead_of_torch
):
    worker = begin(PYTHONPATH=instead_of_torch("raise RuntimeError('broken')"))
    worker.request(Server.memory, LIMIT_S)
    assert worker.started == "started"
    assert [note.code for note in worker.notes] == ["not-forked"]


THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""
CHILD = """
import subprocess
subprocess.Popen(['sleep', '600'])
"""
DEVICE = "cuda._is_in_bad_fork = lambda: True"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (THREAD, ["torch starts threads"]),
        (CHILD, ["torch starts processes"]),
        (DEVICE, ["torch uses a device"]),
        ("import os; os.kill(os.getpid(), 11)", ["the template ended", ""]),
    ],
)
def test_a_library_that_a_fork_would_break_is_imported_by_a_started_process(
    begin, instead_of_torch, line, says
):
    path = instead_of_torch(line)
    for words in says:  # what ends a template is tried once
        worker = begin(PYTHONPATH=path)
        worker.request(Server.memory, LIMIT_S)
        assert worker.started == "started"
        assert [words in note.text for note in worker.notes] == [True] * bool(words)
    worker = begin((), PYTHONPATH=path)
    worker.request(Server.memory, LIMIT_S)
    assert worker.started == "forked"


@pytest.mark.parametrize(("line", "what"), [(THREAD, "threads"), (CHILD, "processes")])
def test_a_builder_that_starts_others_at_import_is_measured_in_a_started_process(
    templates, tmp_path, line, what
):
    (tmp_path / "own.py").write_text(
        f"{line}\nimport torch\ndef build():\n    return torch.nn.Linear(2, 2), torch.ones(1, 2)\n"
    )
    point = Point(workload=Workload(model=f"{tmp_path / 'own.py'}:build"), runtime="eager")
    plan = Plan(points=(point,), folder=tmp_path / "cache")
    (series,) = series_of(plan.points, plan, tmp_path / "scratch")
    begun = []

    def spawn(label, variables, libraries):
        environment = {**VARIABLES, **variables}
        forks = None if libraries is None else templates
        begun.append(
            Worker(label, environment=environment, templates=forks, libraries=libraries or ())
        )
        return begun[-1]

    try:
        bench = made_bench(plan, [series], Mock(), tmp_path / "scratch", None)
        setup = Setup(bench, spawn, None)
        setup._start(series, 0)
        first, worker = begun
        assert not first.alive
        assert worker.started == "started" and series.workers[0] is worker
        assert [note.code for note in worker.notes] == ["not-forked"]
        (note,) = series.notes
        assert note.code == "begins-others" and f"starts {what}," in note.text
        assert setup.bind(series, 0, 1) is None
        assert series.bound[1, 0].bound.calls > 10
    finally:
        for worker in begun:
            worker.kill()


@pytest.mark.parametrize(
    ("line", "end", "what"),
    [
        ("threading.Thread(target=waits.wait).start()", lambda own: own.waits.set(), "threads"),
        ("children.append(subprocess.Popen(['sleep', '600']))", None, "processes"),
        ("pass", None, ""),
    ],
)
def test_a_builder_that_starts_others_when_it_is_called_has_a_note(tmp_path, line, end, what):
    (tmp_path / "own.py").write_text(
        "import subprocess, threading, torch\nwaits, children = threading.Event(), []\n"
        f"def build():\n    {line}\n    return torch.nn.Linear(2, 2), torch.ones(1, 2)\n"
    )
    name = f"{tmp_path / 'own.py'}:build"
    found = user.build(name, Workload(model=name)).notes
    own = sys.modules["_frameworktax_user_own"]
    if end is not None:
        end(own)
    for child in own.children:
        child.kill()
        child.wait()
    assert [code for code, _ in found] == ["begun-beside"] * bool(what)
    assert all(f"calling {name} starts {what}," in text for _, text in found)


def test_threads_that_a_library_ends_before_a_fork_do_not_matter(begin, tmp_path):
    worker = begin(OPENBLAS_NUM_THREADS="4", OMP_NUM_THREADS="4")
    worker.request(Server.memory, LIMIT_S)
    assert worker.started == "forked"


CRASH = ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed", "SIGSEGV during load at ")
SHOUT = (
    "print('x' * 10**7, flush=True); os._exit(4)",
    "crashed",
    "itself with exit code 4 during load",
)
RAISE = ("raise ValueError('no')", "user-model", "ValueError: no")
MEMORY = ("torch.ones(2**40)", "user-model", "RuntimeError")


@pytest.mark.parametrize(
    "faults", [[CRASH], [RAISE, MEMORY, SHOUT]], ids=["crash", "raise and exit"]
)
def test_a_fault_is_the_same_record_forked_or_started(begin, tmp_path, faults):
    """An exception leaves the process there for the next fault."""
    ends = []
    for forks in (True, False):
        worker = begin(forks=forks)
        for line, status, says in faults:
            with pytest.raises(Exception) as raised:
                load(worker, tmp_path, line)
            end = raised.value
            ends.append((forks, type(end), getattr(end, "status", None), str(end)))
            assert ends[-1][2] == status and says in ends[-1][3]
        assert worker.started == ("forked" if forks else "started")
    assert [end[1:] for end in ends if end[0]] == [end[1:] for end in ends if not end[0]]


def test_the_end_of_a_template_is_the_end_of_what_it_forked(begin, tmp_path):
    worker = begin()
    pid = number(worker)
    above = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(above, signal.SIGKILL)
    while not is_gone(pid):
        time.sleep(0.01)
    with pytest.raises(WorkerError) as failed:
        worker.request(Server.bind, LIMIT_S, batch=1, limit_ns=10**9)
    assert failed.value.status == "crashed"
    assert "template" in str(failed.value)
    again = begin()
    load(again, tmp_path, "pass")
    assert again.started == "forked"  # of a new one


def test_what_the_model_started_ends_with_the_process(begin, tmp_path):
    worker = begin()
    child = int(load(worker, tmp_path, "write(subprocess.Popen(['sleep', '600']).pid)"))
    pid = number(worker)
    worker.kill()
    for number_of_one in (child, pid):  # a signal to a group reaches its members one after another
        while not is_gone(number_of_one):
            time.sleep(0.01)


def test_an_end_before_the_beginning(tmp_path):
    made = Templates()
    worker = Worker("test", templates=made, libraries=LIBRARIES)
    worker.kill()
    with pytest.raises(WorkerError, match="has ended"):
        worker.request(Server.memory, 1.0)
    made.close()


def test_nothing_is_imported_while_templates_pause(tmp_path):
    made = Templates()
    template = made.get(dict(os.environ), LIBRARIES)
    above = made.get(dict(os.environ))
    with made.paused():
        assert not template.is_ready
        while state(above.process.number) != "T" and not above.is_ready:
            time.sleep(0.01)
        time.sleep(0.2)
        assert not template.is_ready  # nor does it become so
    worker = Worker("test", templates=made, libraries=LIBRARIES)
    assert worker.request(Server.memory, LIMIT_S) > 0 and worker.started == "forked"
    worker.kill()
    made.close()


@pytest.mark.parametrize("forks", [True, False])
def test_a_process_that_begins_while_all_is_stopped_is_stopped(begin, forks):
    worker = begin(forks=forks)
    worker.signal(signal.SIGSTOP)
    asked = threading.Thread(target=worker.request, args=(Server.memory, LIMIT_S), daemon=True)
    asked.start()
    while not (worker._process and worker._process.number):
        time.sleep(0.01)
    while state(worker._process.number) != "T":
        time.sleep(0.01)
    worker.signal(signal.SIGCONT)
    asked.join(LIMIT_S)
    assert not asked.is_alive()


def test_the_end_does_not_wait_for_templates_that_are_not_there(instead_of_torch, monkeypatch):
    awaited = []
    monkeypatch.setattr(Forked, "wait", lambda one, _=None: awaited.append(one.number))
    path, made = instead_of_torch("import time; time.sleep(600)"), Templates()
    made.get({**os.environ, "PYTHONPATH": path}, ("torch", "transformers", "inductor"))
    made.close()
    assert None not in awaited


def test_what_an_import_leaves_in_the_temporary_folder_is_removed(
    instead_of_torch, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    path, made = instead_of_torch("import tempfile; tempfile.mkdtemp()"), Templates()
    worker = Worker("test", environment={"PYTHONPATH": path}, templates=made, libraries=LIBRARIES)
    assert worker.request(Server.memory, LIMIT_S) > 0 and worker.started == "forked"
    worker.kill()
    made.close()
    assert not list((tmp_path / "t").iterdir())


def test_nothing_is_left_behind(tmp_path):
    before = children()
    made = Templates()
    workers = [Worker("test", templates=made) for _ in range(2)]
    pids = [number(worker) for worker in workers]
    made.close()  # before they are
    assert all(map(is_gone, pids))
    assert children() == before
    for worker in workers:
        worker.kill()
