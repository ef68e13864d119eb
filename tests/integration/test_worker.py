"""The measuring process: its diet, its protocol, its end."""

import io
import os
import re
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from frameworktax.attribution import probe
from frameworktax.errors import UsageError, WorkerError
from frameworktax.measure.process import Worker
from frameworktax.measure.worker import CpuTime, Server
from frameworktax.records import EVERY_THREAD, Workload
from frameworktax.runtimes.base import Target

needs_sampler = pytest.mark.skipif(probe() is not None, reason=f"perf-event: {probe()}")
LIMIT_S = 900.0
"""Of a step: no outcome depends on how long one takes."""
FORBIDDEN = {
    "msgspec",
    "pydantic",
    "rich",
    "typer",
    "click",
    "pandas",
    "scipy",
    "matplotlib",
    "vl_convert",
}


@pytest.fixture
def worker():
    made = Worker("test")
    yield made
    made.kill()


@pytest.fixture(scope="module")
def shared():
    """A process for what leaves it there: importing torch takes seconds."""
    made = Worker("test")
    yield made
    made.kill()


def load(worker, tmp_path, runtime, model="mlp", **workload):
    return worker.request(
        Server.load,
        LIMIT_S,
        workload=Workload(model=model, **workload),
        runtime=runtime,
        target=Target(),
        folder=str(tmp_path),
    )


def modules(worker) -> set[str]:
    return {name.partition(".")[0] for name in worker.request(Server.modules, LIMIT_S)}


def test_the_measuring_process_keeps_its_diet(shared, tmp_path):
    """And its protocol: wrong use leaves it there, a block has as many calls as asked."""
    with pytest.raises(UsageError, match="unknown model"):
        load(shared, tmp_path, "eager", model="nothing")
    load(shared, tmp_path, "eager", width=0.1)
    shared.request(Server.bind, LIMIT_S, batch=2, limit_ns=10**9)
    block = shared.request(Server.block, LIMIT_S, batch=2, calls=7)
    assert len(block.latency_ns) == block.pipelined_calls == 7
    assert block.pipelined_ns == sum(block.latency_ns)
    assert block.enqueue_ns is None
    shared.request(Server.sample, LIMIT_S, batch=2, duration_ns=10**8)
    assert "torch" in modules(shared)
    assert not modules(shared) & FORBIDDEN


def test_a_pinned_process_may_use_again_what_it_could_before(worker, tmp_path):
    load(worker, tmp_path, "null")
    usable = os.sched_getaffinity(0)
    for cpus in ((min(usable),), (max(usable),), ()):
        worker.request(Server.pin, LIMIT_S, cpus=cpus)
        for thread in Path(f"/proc/{worker._process.number}/task").iterdir():
            assert os.sched_getaffinity(int(thread.name)) == set(cpus or usable)


def test_inputs_that_do_not_fit_name_the_function_that_returned_them(shared, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "import torch\n\ndef build():\n    return torch.nn.Linear(8, 8), torch.randn(1, 7)\n"
    )
    load(shared, tmp_path, "eager", model=f"{own}:build")
    with pytest.raises(WorkerError, match="mat1 and mat2") as caught:
        shared.request(Server.bind, LIMIT_S, batch=1, limit_ns=10**9)
    assert str(caught.value).endswith(f" ({own}:build)")


def test_each_build_begins_in_the_folder_that_the_process_began_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "import os, torch\nos.chdir('/')\n"
        "def build(): return torch.nn.Linear(8, 8), torch.ones(1, 8)\n"
    )
    worker = Worker("test")
    try:
        for _ in range(2):
            load(worker, tmp_path, "eager", model="own.py:build")
    finally:
        worker.kill()


def test_drawn_inputs_and_what_eager_makes_of_them_are_kept(shared, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "import torch\n"
        "class Own(torch.nn.Module):\n"
        "    def forward(self, x): return x.clamp(min=0)\n"
        "def build(): return Own(), torch.tensor([[-1.0, 2.0]])\n"
    )
    files = {"inputs": str(tmp_path / "inputs.npz"), "outputs": str(tmp_path / "outputs.npz")}
    workload = Workload(model=f"{own}:build", batch=1)
    shared.request(Server.draw, LIMIT_S, workload=workload, device="cpu", number=0, **files)
    assert np.load(files["inputs"])["args.0"].tolist() == [[-1.0, 2.0]]
    assert np.load(files["outputs"])["arr_0"].tolist() == [[0.0, 2.0]]


def test_the_null_runtime_loads_no_engine(worker, tmp_path):
    load(worker, tmp_path, "null")
    worker.request(Server.bind, LIMIT_S, batch=1, limit_ns=10**9)
    block = worker.request(Server.block, LIMIT_S, batch=1, calls=50)
    assert len(block.latency_ns) == 50
    assert not modules(worker) & (FORBIDDEN | {"torch", "onnxruntime", "openvino", "transformers"})


def test_a_silent_worker_is_ended_in_time(worker):
    worker.request(Server.memory, LIMIT_S)
    with pytest.raises(WorkerError) as failed:
        worker.request(Server.calibrate, 0.005, duration_ns=10**9)
    assert failed.value.status == "timeout"
    assert not worker.alive
    with pytest.raises(WorkerError, match=r"^calibrate "):
        worker.request(Server.memory, 1)


def test_a_time_limit_of_years_is_taken(worker):
    assert worker.request(Server.memory, 1e20) > 0


def test_memory_beyond_the_limit_is_out_of_memory(tmp_path):
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x + torch.ones(2**30).sum()\n"
        "def build():\n"
        "    return Net(), torch.ones(1, 2)\n"
    )
    worker = Worker("test", memory_bytes=2 * 2**30)
    try:
        load(worker, tmp_path, "eager", model=f"{tmp_path}/own.py:build")
        with pytest.raises(WorkerError) as failed:
            worker.request(Server.bind, LIMIT_S, batch=1, limit_ns=10**9)
        assert failed.value.status == "out-of-memory"
    finally:
        worker.kill()


def test_who_waits_for_an_answer_is_woken_by_the_end(worker, tmp_path):
    # A child in a group of its own outlives the worker and keeps the socket open: the worker's
    # death alone does not end the connection.
    (tmp_path / "own.py").write_text(
        "import os, pathlib, time\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os.setsid()\n"
        "    pathlib.Path(__file__).with_name('child').write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    ended = []

    def wait():
        with pytest.raises(WorkerError) as failed:
            load(worker, tmp_path, "eager", model=f"{tmp_path}/own.py:build")
        ended.append((failed.value.status, str(failed.value).rpartition(" ")[2]))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    child = tmp_path / "child"
    try:
        while not (child.exists() and child.read_text()):
            assert waiting.is_alive(), ended  # the model's file was not run
            time.sleep(0.01)
        worker.kill()
        waiting.join(LIMIT_S)
        assert ended == [("failed", "load")]
    finally:
        if child.exists():
            os.kill(int(child.read_text()), signal.SIGKILL)


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_a_stopped_process_takes_no_time_until_it_goes_on(worker):
    worker.request(Server.memory, LIMIT_S)
    pid = worker._process.number
    worker.signal(signal.SIGSTOP)
    while _state(pid) != "T":
        time.sleep(0.01)
    worker.signal(signal.SIGCONT)
    worker.request(Server.memory, LIMIT_S)
    worker.signal(signal.SIGSTOP)
    worker.kill()  # whether it runs or not
    worker.signal(signal.SIGCONT)
    assert not worker.alive


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        ("sys.exit(9)", "failed", r"ends its process: SystemExit: 9 \(.*own\.py:4\); remove"),
        ("raise KeyboardInterrupt", "failed", r"KeyboardInterrupt \(.*own\.py:4\)"),
        (
            "os._exit(9)",
            "crashed",
            r"ended itself with exit code 9 during bind: os\._exit .*remove",
        ),
    ],
)
def test_a_model_that_ends_its_process_says_how(worker, tmp_path, line, status, says):
    (tmp_path / "own.py").write_text(
        "import os, sys, torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        f"        {line}\n"
        "def build():\n"
        "    return Net(), torch.ones(1, 2)\n"
    )
    load(worker, tmp_path, "eager", model=f"{tmp_path}/own.py:build")
    with pytest.raises(WorkerError, match=says) as failed:
        worker.request(Server.bind, LIMIT_S, batch=1, limit_ns=10**9)
    assert failed.value.status == status
    assert worker.alive == (status == "failed")


@pytest.mark.parametrize(
    ("text", "is_end"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA failure 700: an illegal memory access was encountered ; GPU=0", True),
        # Of kernels that Inductor wrote, launched by Triton or by a package compiled ahead of time.
        ("Triton Error [CUDA]: an illegal memory access was encountered", True),
        ("CUDA driver error: device-side assert triggered", True),
        ("HIP error: an illegal memory access was encountered", True),
        ("CUDA error: out of memory", False),
        ("Triton Error [CUDA]: out of memory", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_a_process_ends_with_an_error_that_each_later_call_would_give(
    worker, tmp_path, text, is_end
):
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        f"        raise RuntimeError({text!r})\n"
        "def build():\n"
        "    return Net(), torch.ones(1, 2)\n"
    )
    load(worker, tmp_path, "eager", model=f"{tmp_path}/own.py:build")
    with pytest.raises(WorkerError, match=re.escape(text)):
        worker.request(Server.bind, LIMIT_S, batch=1, limit_ns=10**9)
    assert worker.alive != is_end


def test_what_has_computed_nothing_yet_is_not_timed():
    server = Server()
    server._loaded = SimpleNamespace(bind=lambda batch: lambda: (x for x in ()))
    with pytest.raises(WorkerError, match="has computed nothing"):
        server.bind(batch=1, limit_ns=1)


def test_a_full_disk_says_what_to_do():
    server, answer = Server(), io.BytesIO()
    server._loaded = SimpleNamespace(bind=lambda batch: Path("/dev/full").write_bytes(b"x"))
    server.answer("bind", {"batch": 1, "limit_ns": 1}, answer)
    assert b"free space, or name another folder in FRAMEWORKTAX_CACHE" in answer.getvalue()


DEFAULTS = """
import torch

class Own(torch.nn.Linear):
    def forward(self, x):
        torch.set_default_dtype(torch.float64)
        return super().forward(x)

def build():
    return Own(4, 4), torch.ones(1, 4)
"""


def test_a_model_whose_call_sets_the_default_type_is_built_as_before(worker, tmp_path):
    """The set-up process calls it to count its operations, then builds it to export it."""
    path = tmp_path / "own.py"
    path.write_text(DEFAULTS)
    workload = Workload(model=f"{path}:build")
    worker.request(
        Server.describe, LIMIT_S, workload=workload, device="cpu", batches=(1,), limit_s=1.0
    )
    other = Worker("another")
    try:
        for number, one in (("a", worker), ("b", other)):
            load(one, tmp_path, "eager", model=f"{path}:build")
            one.request(Server.bind, LIMIT_S, batch=1, limit_ns=1)
            one.request(Server.output, LIMIT_S, batch=1, path=str(tmp_path / number))
    finally:
        other.kill()
    first, second = (np.load(tmp_path / number)["arr_0"] for number in "ab")
    assert np.array_equal(first, second)


THREADS = """
import torch

class Own(torch.nn.Linear):
    def forward(self, x):
        torch.set_num_threads(2)
        return super().forward(x)

def build():
    return Own(4, 4), torch.ones(1, 4)
"""


def test_a_model_that_sets_its_threads_is_not_measured_as_asked_for(worker, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(THREADS)
    load(worker, tmp_path, "eager", model=f"{path}:build")
    bound = worker.request(Server.bind, LIMIT_S, batch=1, limit_ns=1)
    assert [(note.code, note.text[-24:]) for note in bound.notes] == [
        ("threads-changed", "to 2, not 1 as asked for")
    ]


ELSEWHERE = """
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import torch

pool = ThreadPoolExecutor(1)

class Pooled(torch.nn.Linear):
    def forward(self, x):
        return pool.submit(super().forward, x).result()

class Begun(torch.nn.Linear):
    def forward(self, x):
        found = []
        thread = Thread(target=lambda: found.append(torch.nn.Linear.forward(self, x)))
        thread.start()
        thread.join()
        return found[0]

def pooled():
    return Pooled(2048, 2048, bias=False), torch.ones(64, 2048)

def begun():
    return Begun(2048, 2048, bias=False), torch.ones(64, 2048)
"""


@needs_sampler
def test_what_the_threads_of_a_model_compute_is_no_tax(worker, tmp_path):
    """The calling thread waits for them: of it alone, all of the call would be tax."""
    path = tmp_path / "own.py"
    path.write_text(ELSEWHERE)
    load(worker, tmp_path, "eager", model=f"{path}:pooled")
    worker.request(Server.bind, LIMIT_S, batch=64, limit_ns=1)
    found = worker.request(Server.sample, LIMIT_S, batch=64, duration_ns=500_000_000)
    assert found.method == EVERY_THREAD
    (stretch,) = found.samples
    assert stretch["kernel"] > sum(stretch.values()) / 2
    with pytest.raises(WorkerError, match="threads of its own"):
        worker.request(Server.places, LIMIT_S, batch=64, by="module", duration_ns=1, stretches=1)


@needs_sampler
def test_no_tax_is_known_of_a_model_whose_threads_end_with_the_call(worker, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(ELSEWHERE)
    load(worker, tmp_path, "eager", model=f"{path}:begun")
    worker.request(Server.bind, LIMIT_S, batch=64, limit_ns=1)
    with pytest.raises(WorkerError, match="end with the call"):
        worker.request(Server.sample, LIMIT_S, batch=64, duration_ns=1)


def test_which_other_threads_compute_follows_from_processor_times():
    before = CpuTime(process=10, thread=5, living={7: 3})

    def since(process, thread, **alive):
        living = {7: 3 + alive.get("seven", 0), 8: alive.get("eight", 0)}
        return CpuTime(10 + process, 5 + thread, living).elsewhere(before)

    ms = 1_000_000
    assert since(10 * ms, 10 * ms) is None
    assert since(10 * ms, 9.6 * ms, seven=0.4 * ms) is None
    assert since(10 * ms, 9 * ms, seven=1 * ms) == "alive"
    assert since(10 * ms, 9 * ms, eight=1 * ms) == "alive"
    assert since(10 * ms, 8 * ms, eight=1 * ms) == "ended"
    assert since(1000, 500) is None  # what the clocks of two threads differ by
