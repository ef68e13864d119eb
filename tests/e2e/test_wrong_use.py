"""Wrong use: one line, exit 2, no traceback, and it says what to do."""

import shlex
import sys

import fake_measuring
import pytest
import sample_records

from frameworktax.cli import RETIRED, replacement

MLP = """
import torch

def build():
    return torch.nn.Linear(8, 8), torch.randn(1, 8)

def raises():
    raise ValueError("no such weights")

def returns_text():
    return "a model"

number = 3

def wants(size):
    return torch.nn.Linear(8, size), torch.randn(1, 8)
"""


@pytest.fixture
def run(here, monkeypatch):
    """Return the command line in this process, with sessions that are fake."""
    fake_measuring.install(monkeypatch.setattr)
    here.write("own.py", MLP)
    return here


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["bert-bsae"], ["bert-base"]),
        (["mlp", "--runtimes", "eagre"], ["eager"]),
        (["mlp", "--batch", "0"], ["--batch"]),
        (["mlp", "--batch", "abc"], ["--batch", "1,2,4"]),
        (["mlp", "--batch", "1..x"], ["--batch"]),
        (["mlp", "--precision", "float8"], ["float8", "bfloat16"]),
        (["mlp", "--device", "tpu"], ["tpu", "cuda:N"]),
        (["mlp", "--device", "cuda:0"], ["cuda:0"]),
        (["mlp", "--length", "12"], ["length"]),
        (["bert-tiny", "--length", "100000"], ["100000"]),
        (["mlp", "--threads", "0"], ["threads"]),
        (["mlp", "--threads", "9999", "--device", "cpu"], ["9999 threads", "--force-threads"]),
        (["mlp", "--width", "0"], ["width"]),
        (["mlp", "--time-budget", "soon"], ["60s"]),
        (["mlp", "--until", "much"], ["3%"]),
        (["mlp", "--until", "7"], ["7%", "0.07"]),
        (["mlp", "--twin", "maybe"], ["auto"]),
        (["mlp", "--no-such-option"], ["--no-such-option"]),
        (["mlp", "--runtimes", ""], ["runtimes"]),
        (["missing.py:build"], ["missing.py"]),
        (["own.py:biuld"], ["build"]),
        (["own.py:raises"], ["no such weights", "own.py:8"]),
        (["own.py:returns_text"], ["str", "torch.nn.Module"]),
        (["own.py:number"], ["own.py:number", "type int"]),
        (["own.py:wants"], ["own.py:wants", "'size'"]),
        (["no_such_package.module:build"], ["no_such_package"]),
        (["mlp", "--runtimes", "onnxruntime@9"], ["'9'", "choose onnxruntime@0, onnxruntime@1"]),
        (["bert-tiny", "--phase", "generate"], ["bert-tiny", "gpt2"]),
        (["bert-tiny", "--input", "ragged:5"], ["ragged:MEAN,SD"]),
        (["bert-tiny", "--input", "ragged:300,5"], ["--length"]),
        (["bert-tiny", "--channels-last"], ["images"]),
        (["bert-tiny", "--trust-remote-code"], ["hf:", "leave out"]),
        (["gpt2", "--phase", "generate", "--length", "1020"], ["1024", "--new-tokens"]),
        (["own.py:build", "--input", "ragged", "--runtimes", "eager"], ["padding", "Linear"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_measure(run, words, says):
    run("measure", *words).refused(*says)


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("eager=onnx", ["'onnx'", "'onnxruntime'?"]),
        ("eagre=onnxruntime", ["'eagre'", "'eager'?"]),
    ],
)
def test_a_runtime_to_compare_that_the_store_has_not(run, tmp_path, pair, says):
    sample_records.write(tmp_path / "store", sample_records.sample_records())
    run("compare", "store", "--runtime", pair).refused(*says, "store", "eager, inductor")


def test_a_model_that_raises_in_its_own_process(shell):
    shell.write("own.py", MLP)
    words = ("--runtimes", "eager", "--batch", "1", "--time-budget", "1h")
    shell("measure", "own.py:raises", *words).refused("no such weights", "own.py:8")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["measure", "mlp", "--report", "x.pdf"], [".md", ".html"]),
        (["explain", "own.py", "--report", "x.pdf"], [".md", ".html"]),
        (["run", "--report", "x.pdf", "own.py"], [".md", ".html"]),
        (["store", "prune", "--cache", "--limit", "9XB"], ["2GB"]),
        (["sweep", "own.py", "--store", "own.py"], ["is a file", "--store"]),
        (["mesaure", "mlp"], ["--help"]),
        (["measure", "mlp", "bert-base"], ["measure --help"]),
        (["compare", "a", "b", "--gate", "5"], ["write 5% or 0.05"]),
        (["attach"], ["PID"]),
        (["attach", "1"], ["process 1"]),
        (["attach", "999999999"], ["process 999999999", "pgrep"]),
        (["attach", "4711", "--duration", "soon"], ["--duration"]),
        (["attach", "4711", "-o", "tax.svg"], [".collapsed"]),
        (["ablate", "bert-base", "--paths", "onnx"], ["'onnx'", "'onnxruntime'?"]),
        (["ablate", "onnx:m.onnx"], ["onnx:m.onnx", "torch module"]),
        (["ablate", "mlp", "--figure", "r.gif"], ["'r.gif'; choose .svg, .png, .pdf"]),
        (["ablate", "mlp", "--redraw", "--store", "absent"], ["absent"]),
        (["reproduce", "figur-1"], ["'figure-1'?"]),
        (["reproduce", "figure-1", "--scale", "tiny"], ["choose full, small"]),
        (["reproduce", "figure-1", "--report", "page.pdf"], ["choose .md, .html"]),
        (["explain", "none.json"], ["none.json"]),
        (["doctor", "--calibrate", "--fix-hints"], ["--fix-hints", "alone"]),
        (["doctor", "--fix-hints", "--json"], ["--fix-hints", "alone"]),
        (["ablate", "mlp", "--redraw", "--until", "5%"], ["--until", "beside --redraw"]),
        (["reproduce", "figure-1", "--dry-run", "--report", "p.md"], ["--dry-run", "--json"]),
        (["reproduce", "figure-1", "--dry-run", "--redraw"], ["--redraw", "leave out"]),
        (["reproduce", "figure-1", "--dry-run", "--time-budget", "x"], ["'x'", "60s"]),
        (["sweep", "s.toml", "--dry-run", "--report", "p.md"], ["--dry-run", "--json"]),
        (["measure", "mlp", "--json", "x.md", "--report", "./x.md"], ["x.md", "each"]),
        (["store", "export", "s"], ["--to", "store export --help"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_each_says_what_to_write_instead(run, words, says):
    run(*words).refused(*says)


def test_a_plan_has_the_time_budget_that_was_given(run):
    words = ("reproduce", "figure-1", "--scale", "small", "--dry-run", "--time-budget", "5min")
    assert "time budget 5 min" in run(*words).out


def test_the_name_of_a_new_study_drives_no_terminal(run):
    assert "\x1b" not in run("init", "a\x1b[31mb.toml").out


def test_the_trace_of_an_error_drives_no_terminal(run):
    err = run("explain", "a\x1b[31mb.json", "--verbose").err
    assert "Traceback" in err and "\n    " in err and "\x1b" not in err


def test_the_help_has_each_verb_in_a_whole_sentence(run):
    assert "..." not in run("--help").out.partition("Commands:")[2]


def test_a_report_has_the_format_of_its_suffix(run, tmp_path):
    assert run("measure", "mlp", "--batch", "1", "--report", "x.md").code == 0
    assert (tmp_path / "x.md").read_text().startswith("# ")


def test_an_unwritable_store(run, tmp_path):
    (tmp_path / "file").write_text("")
    run("measure", "mlp", "--store", "file/store").refused("--store")


def test_an_unwritable_report_is_found_before_measuring(run, tmp_path):
    (tmp_path / "file").write_text("")
    run("measure", "mlp", "--report", "file/report.html").refused("file")
    assert not (tmp_path / "frameworktax-results").exists()


def test_a_page_of_the_paper_asks_for_what_draws_before_anything_is_measured(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    words = ("reproduce", "figure-1", "--redraw", "--store", "absent", "--report", "paper.md")
    run(*words).refused("vl-convert-python")


def test_no_store_to_report(run, tmp_path):
    run("report", "nowhere", "-o", "r.html").refused("nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["own.py"]


@pytest.mark.parametrize(
    "words",
    [
        ["report", "an other"],
        ["report", "my results", "--where", "model=x"],
        ["compare", "an other.json", "my results"],
        ["sweep", "an other.toml"],
    ],
)
def test_a_path_with_a_space_is_quoted_in_the_command_to_type(run, tmp_path, words):
    sample_records.write(tmp_path / "my results", sample_records.sample_records())
    done = run(*words)
    assert done.code == 2
    assert words[1] in shlex.split(done.err), done.err


def test_a_file_that_is_no_store(run, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "x.jsonl").write_text("<script>")
    run("report", "store").refused("not a frameworktax store")


def test_an_unknown_kind_of_report(run, tmp_path):
    (tmp_path / "store").mkdir()
    run("report", "store", "-o", "report.docx").refused("docx")


def test_no_command_prints_help(run):
    ran = run()
    assert ran.code == 2
    assert "measure" in ran.out


@pytest.mark.parametrize("more", [[], ["file"]], ids=["alone", "with a file"])
@pytest.mark.parametrize("retired", RETIRED)
def test_a_retired_command_names_what_replaced_it(command, retired, more):
    code, _, err = command(*retired.split(), *more)
    assert code == 2 and RETIRED[retired] in err


def test_only_the_command_itself_is_retired(monkeypatch):
    monkeypatch.setitem(RETIRED, "old --way", "use measure")
    assert "use measure" in replacement(["old", "file", "--way=3"])
    assert replacement(["old", "file"]) is None
    assert replacement(["measure", "old", "--way"]) is None
