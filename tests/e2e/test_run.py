"""A program under `frameworktax run` is what it is without: output, exit code, signals."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from attempts import in_attempts

# As much of torch as is watched: importing it takes seconds, and none of this is about it.
TORCH = """
import types, unittest.mock
_C = unittest.mock.MagicMock()
class Module:
    def __call__(self, *args): return self.forward(*args)
    def named_modules(self): return [("", self)]
    def parameters(self): return iter(())
class Optimizer:
    profile_hook_step = staticmethod(lambda function: function)
nn = types.SimpleNamespace(Module=Module)
compiler = types.SimpleNamespace(is_dynamo_compiling=lambda: False)
autograd = types.SimpleNamespace(backward=lambda: None, grad=lambda: None)
optim = types.SimpleNamespace(Optimizer=Optimizer)
"""
PROGRAM = """
import os, signal, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
import torch

class Net(torch.nn.Module):
    def forward(self, n):
        return sum(range(n))

def work(calls):
    net = Net()
    for _ in range(calls):
        net(1000)

if __name__ == "__main__":
    how = sys.argv[1]
    if how == "wait":
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(5))
        signal.signal(signal.SIGWINCH, lambda number, frame: sys.exit(6))
    work(100)
    print(how, sys.argv, sys.path, __name__, flush=True)
    if how == "children":
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work, 20)
        child = get_context("spawn").Process(target=work, args=(30,))
        child.start()
        child.join()
        if os.fork() == 0:
            work(40)
            os._exit(0)
        os.wait()
        subprocess.run([sys.executable, __file__, "end"], stdout=subprocess.DEVNULL)
    if how == "exec":
        work(20)  # of another module
        code = "from program import work; work(30)"
        os.execv(sys.executable, [sys.executable, "-c", code])
    if how == "raise":
        raise ValueError("no")
    if how == "os._exit":
        os._exit(9)
    if how in ("SIGINT", "SIGKILL"):
        os.kill(os.getpid(), getattr(signal, how))
    if how == "wait":
        time.sleep(3600)
"""


@pytest.fixture
def program(shell):
    shell.write("torch.py", TORCH)
    shell.write("program.py", PROGRAM)
    return shell


def plain(program, *words):
    done = subprocess.run(
        [sys.executable, *words],
        cwd=program.folder,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
    )
    return done.returncode, done.stdout


def calls_in(program):
    """Return the number of calls in each thread."""
    document = json.loads((program.folder / "run.json").read_text())
    return document, sorted(
        [kind["calls"] for kind in section["kinds"]]
        for section in document["sections"]
        if section["kinds"]
    )


@pytest.mark.parametrize(
    ("how", "calls"),
    [
        ("children", [[20], [30], [40], [100], [100]]),
        ("exec", [[30]]),  # of what the process became
        ("raise", [[100]]),
        ("os._exit", [[100]]),
        ("SIGINT", [[100]]),
        ("SIGKILL", [[100]]),
    ],
)
def test_output_and_end_are_the_plain_programs_and_numbers_are_kept(program, how, calls):
    ran = program("run", "--json", "run.json", "program.py", how, "--json", "own.json")
    assert (ran.code, ran.out) == plain(program, "program.py", how, "--json", "own.json"), ran.err
    document, found = calls_in(program)
    assert found == calls
    # Of a process that executed another program what was before is left out, and said to be.
    assert ("calls-not-noted" in {n["code"] for n in document["notes"]}) == (how == "exec")
    kind = document["sections"][0]["kinds"][0]
    assert kind["source"].endswith("program.py:8")


FORKING = """
from multiprocessing import get_context

def work(calls):
    from program import work
    work(calls)

if __name__ == "__main__":
    children = [get_context("fork").Process(target=work, args=(calls,)) for calls in (20, 30)]
    for child in children:
        child.start()
    for child in children:
        child.join()
"""


def test_children_that_import_torch_after_they_were_forked_have_notes_of_their_own(program):
    program.write("forking.py", FORKING)
    ran = program("run", "--json", "run.json", "forking.py")
    assert ran.code == 0, ran.err
    document, calls = calls_in(program)
    assert calls == [[20], [30]]
    parents = {section["pid"]: section["parent"] for section in document["sections"]}
    pids = {section["pid"] for section in document["sections"] if section["kinds"]}
    assert len(pids) == 2 and len({parents[pid] for pid in pids}) == 1


def test_a_module_and_a_program_of_the_path_run_too(program):
    program.write("test_it.py", "from program import work\ndef test_it(): work(50)\n")
    ran = program("run", "--quiet", "-m", "program", "end", "-m")
    assert (ran.code, ran.out, ran.err) == (*plain(program, "-m", "program", "end", "-m"), "")
    own = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = ("run", "--json", "run.json", "pytest", "-q", "-p", "no:cacheprovider")
    ran = program(*words, PATH=own)
    assert ran.code == 0 and "1 passed" in ran.out
    assert calls_in(program)[1] == [[50]]


def test_a_test_that_fails_in_a_call_has_the_output_of_the_plain_run(program):
    program.write("test_it.py", "from program import Net\ndef test_it(): Net()('no number')\n")
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short")
    ran = program("run", "--json", "run.json", *words)
    code, out = plain(program, *words)
    took = re.compile(r"in [\d.]+s")
    assert (ran.code, took.sub("", ran.out)) == (code, took.sub("", out))
    assert code == 1 and "TypeError" in out
    assert calls_in(program)[1] == [[1]]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 5),
        (signal.SIGWINCH, 6),
        (signal.SIGALRM, -signal.SIGALRM),
        (signal.SIGRTMIN, -signal.SIGRTMIN),
        (signal.SIGSEGV, -signal.SIGSEGV),
    ],
)
def test_a_signal_to_the_command_is_the_programs(program, number, code):
    words = ("run", "--quiet", "--json", "run.json", "program.py", "wait")
    done = subprocess.Popen(
        [sys.executable, "-m", "frameworktax", *words],
        cwd=program.folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout.readline().startswith("wait")
    done.send_signal(number)
    assert done.wait(600) == code
    assert calls_in(program)[1] == [[100]]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("absent.py",),
        ("--json", "-", "program.py"),
        ("--report", "absent/../torch.py/x.html", "program.py"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(here, words):
    here.write("program.py", "raise SystemExit('was run')\n")
    here.write("torch.py", "")
    ran = here("run", *words)
    ran.refused()
    assert "was run" not in ran.err


KNOWN = """
import json, sys, time
import torch
import frameworktax as ft

class Block(torch.nn.Module):
    def __init__(self, spin_ms):
        super().__init__()
        self.linear, self.spin_ms = torch.nn.Linear(64, 64), spin_ms
        self.took_ns = 0

    def forward(self, x):
        begin = time.thread_time_ns()
        while time.thread_time_ns() < begin + self.spin_ms * 1_000_000:
            pass
        x = self.linear(x)
        self.took_ns += time.thread_time_ns() - begin
        return x

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(*(Block(ms) for ms in (0, 0, 5, 0)))
        self.took_ns = 0

    def forward(self, x):
        begin = time.thread_time_ns()
        x = self.blocks(x)
        self.took_ns += time.thread_time_ns() - begin
        return x

torch.set_num_threads(1)
net, head = Net(), torch.compile(torch.nn.Linear(64, 1), backend="eager")
optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=1e-3)
for step in range(int(sys.argv[1])):
    with ft.tax("net") as block:
        out = net(torch.randn(8, 64))
    head(out).sum().backward()
    optimizer.step()
found = block.result()
spun = net.blocks[2].took_ns / net.took_ns
print(json.dumps([found.share.low, found.share.high, spun]))
"""


@pytest.mark.timing
@in_attempts
def test_what_is_known_of_a_program_with_torch_comes_back(shell):
    """Two modules, one compiled; a spin of 5 ms in the third block; the program's own `ft.tax`."""
    shell.write("known.py", KNOWN)
    ran = shell("run", "--json", "run.json", "--skip-first", "2", "known.py", "300")
    assert ran.code == 0, ran.err
    document = json.loads((shell.folder / "run.json").read_text())
    (kinds,) = [s["kinds"] for s in document["sections"] if s["kinds"]]
    assert {(kind["name"], kind["kind"], kind["calls"]) for kind in kinds} == {
        ("Net", "module", 300), ("Linear (compiled)", "module", 300),
        ("backward", "backward", 300), ("SGD.step", "step", 300),
    }  # fmt: skip
    (net,) = [kind for kind in kinds if kind["name"] == "Net"]
    (spin,) = [layer for layer in net["layers"] if layer["path"] == "blocks.2"]
    low, high, spun = json.loads(ran.out.splitlines()[-1])
    on_cpu_ns = net["latency_ns"]["value"] - net["bill_ns"].get("wait", 0)
    assert net["latency_ns"]["value"] > 5e6
    # By the program's own clock of its processor time: what others take is no part of either.
    assert spin["time_ns"]["value"] / on_cpu_ns == pytest.approx(spun, abs=0.1)
    assert spin["file"].endswith("known.py") and spin["line"] == 12
    # Waiting for other processes is in the block's share alone.
    assert net["tax_share"]["low"] - 0.05 <= high and low - 0.05 <= net["tax_share"]["high"]


COMPILING = """
import torch
from torch._dynamo.testing import CompileCounter

class Net(torch.nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.forward = forward

compiled = CompileCounter()
for number in range(10):
    space = {}
    exec(f"def forward(x): return x + {number}", space)
    net = torch.compile(Net(space["forward"]), backend=compiled)
    for _ in range(20):
        net(torch.ones(2))
print(compiled.frame_count)
"""


def test_more_modules_are_compiled_than_torch_keeps_of_one_function(shell):
    shell.write("compiling.py", COMPILING)
    ran = shell("run", "--json", "run.json", "compiling.py")
    assert (ran.code, ran.out) == (0, "10\n"), ran.err
    assert sum(map(sum, calls_in(shell)[1])) == 200


HOOKED = """
import torch
from torch._dynamo.testing import CompileCounter

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self.inner.register_forward_hook(lambda module, given, found: 2 * found)

    def __call__(self, x):
        return super().__call__(x) + 1

    def forward(self, x):
        return self.inner(x)

class Outer(torch.nn.Module):
    def forward(self, x):
        return function(x)

net, compiled = Net(), CompileCounter()
function = torch.compile(lambda x: net(x), backend=compiled, fullgraph=True)
outer, whole = Outer(), torch.compile(net, backend=compiled, fullgraph=True)
torch._dynamo.config.error_on_recompile = True
for _ in range(20):
    for one in (function, outer, whole):
        one(torch.ones(2))
print(compiled.frame_count)
"""


def test_torch_compile_sees_a_module_with_hooks_as_it_does_without_a_run(shell):
    """Whether it is called by the program, in a call, or in one that is noted in detail."""
    shell.write("hooked.py", HOOKED)
    ran = shell("run", "--json", "run.json", "hooked.py")
    assert (ran.code, ran.out) == (0, "2\n"), ran.err
    assert sorted(map(sum, calls_in(shell)[1])) == [40]


LOADING = """
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self):
        self.scale = torch.nn.Linear(4, 4)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        with torch.no_grad():
            return self.scale(torch.full((4,), float(index)))

torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 2))
for workers in (0, 2):
    for batch in DataLoader(Rows(), batch_size=4, num_workers=workers):
        print(tuple(net(batch).shape))
"""


def test_what_loads_data_has_its_calls_and_the_wait_for_it_is_none_of_them(shell):
    """Ten batches of four rows, each made by a module: in the program, then in forked workers."""
    shell.write("loading.py", LOADING)
    ran = shell("run", "--json", "run.json", "loading.py")
    assert (ran.code, ran.out) == (0, "(4, 2)\n" * 20), ran.err
    found, _ = calls_in(shell)
    sections = [
        {(kind["kind"], kind["name"]): kind["calls"] for kind in section["kinds"]}
        for section in found["sections"]
        if section["kinds"]
    ]
    rows = ("module", "Linear")
    main = {("module", "Sequential"): 20, rows: 40}
    # The last time there is no batch any more.
    main |= {("data", f"DataLoader, {workers} workers"): 11 for workers in (0, 2)}
    assert main in sections
    assert [one for one in sections if one != main] == [{rows: 20}] * 2


TOKENISING = """
import tokenizers
import transformers
words = tokenizers.models.WordLevel({"a": 0, "?": 1}, unk_token="?")
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words))
for _ in range(5):
    print(tokenizer("a")["input_ids"])
"""


def test_calls_of_a_tokeniser_are_between_calls(shell):
    shell.write("tokenising.py", TOKENISING)
    ran = shell("run", "--json", "run.json", "tokenising.py")
    assert (ran.code, ran.out) == (0, "[0]\n" * 5), ran.err
    found, calls = calls_in(shell)
    assert calls == [[5]]
    (kinds,) = [section["kinds"] for section in found["sections"] if section["kinds"]]
    assert kinds[0]["kind"] == "tokenise"


INPUTS = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.width = width
        self.linear = torch.nn.Linear(width, 3, bias=bias)

    def forward(self, x, scale=1.0, cache=None):
        return self.linear(x) * scale

if __name__ == "__main__":
    net = Net(5, False)
    for number in range(9):
        net(torch.full((4, 5), 7.0), scale=0.5, cache=object())
"""


def test_inputs_that_were_recorded_are_what_build_returns(shell, monkeypatch):
    """The module, made with the arguments that its attributes have, and values as they were."""
    shell.write("net.py", INPUTS)
    words = ("--only", "Net", "--record-inputs", "inputs.py", "--input-values")
    ran = shell("run", *words, "net.py")
    assert ran.code == 0, ran.err
    assert "frameworktax measure inputs.py:build --batch 4" in ran.err
    assert "bias" in ran.err
    monkeypatch.syspath_prepend(str(shell.folder))
    path = shell.folder / "inputs.py"

    def build(bias):
        found = {"__file__": str(path), "__name__": "inputs"}
        exec(path.read_text().replace("Net(width=5)", f"Net(width=5{bias})"), found)
        return found["build"]()

    with pytest.raises(TypeError):  # its bias is no attribute of Net: the argument is to be given
        build("")
    with pytest.raises(ValueError):  # 15 parameters ran, not 18
        build(", bias=True")
    module, given = build(", bias=False")
    assert (type(module).__name__, module.width) == ("Net", 5)
    assert given.pop("x").tolist() == [[7.0] * 5] * 4
    assert given == {"scale": 0.5}
    monkeypatch.delitem(sys.modules, "net")
