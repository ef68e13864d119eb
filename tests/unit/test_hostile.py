"""Input that means harm or is broken: one line and exit code 2, in little time and memory."""

import io
import json
import os
import re
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import sample_records
from rich.console import Console
from sample_records import to_json

from frameworktax import cli, errors, records, store
from frameworktax.cli.deliver import fail
from frameworktax.errors import ONE_LINE, UsageError, flat
from frameworktax.explaining import explain
from frameworktax.integrations import readers
from frameworktax.measure.plan import MOST_PROCESSES, Plan
from frameworktax.report.blocks import Cell, Heading, Item, Items, Note, Notes, Text, right, table
from frameworktax.report.render_markdown import markdown
from frameworktax.report.render_terminal import print_blocks
from frameworktax.sweep import study

STUDY = '[study]\nname = "s"\n[grid]\nmodels = ["mlp"]\n'
DRIVES = "\x1b]0;title\x07\x1b[2Jname\u202eeman\u200b\x9b31m\x00\n"
"""Sets a terminal's title, clears it, turns the direction of text, and breaks the line."""


@pytest.fixture
def run(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    return command


def one_line(result) -> str:
    code, _, err = result
    assert code == 2, err
    assert err.startswith("frameworktax: ") and err.count("\n") == 1
    assert len(err) < ONE_LINE + len("frameworktax: \n") + 1
    return err


# --- names and arguments --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "NAME"),
        ("report", "NAME"),
        ("compare", "NAME", "NAME"),
        ("measure", "NAME.py:f"),
        ("measure", "NAME.onnx"),
        ("measure", "mlp", "--store", "NAME"),
        ("measure", "mlp", "--json", "NAME"),
        ("measure", "mlp", "--report", "NAME.html"),
        ("sweep", "NAME"),
        ("init", "NAME"),
        ("store", "check", "NAME"),
        ("store", "list", "NAME"),
        ("store", "merge", "NAME", "-o", "x"),
        ("store", "prune", "NAME", "--failed"),
    ],
    ids=" ".join,
)
def test_a_name_that_no_file_system_takes(run, words):
    one_line(run(*(word.replace("NAME", "n" * 300) for word in words)))


@pytest.mark.parametrize(
    "words",
    [
        ("measure", "x" * 1_000_000),
        ("measure", "mlp", "--batch", "y" * 1_000_000),
        ("explain", "z" * 1_000_000),
        ("sweep", "s.toml", "a=" + "b" * 1_000_000),
    ],
    ids=lambda words: words[-1][0],
)
def test_an_argument_of_a_megabyte(run, words):
    one_line(run(*words))


def test_a_long_message_keeps_its_remedy(capsys):
    with pytest.raises(SystemExit):
        fail("no model " + "x" * 10_000 + "; see 'frameworktax list models'", 2)
    said = capsys.readouterr().err
    assert said.startswith("frameworktax: no model xx")
    assert said.endswith("; see 'frameworktax list models'\n")


def test_too_many_processes():
    assert Plan(points=(), processes=MOST_PROCESSES).processes == MOST_PROCESSES
    with pytest.raises(UsageError, match=str(MOST_PROCESSES)):
        Plan(points=(), processes=1_000_000_000)


# --- how a command ends ---------------------------------------------------------------------------


def test_a_crash_has_a_code_that_no_verdict_has(run, monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr("frameworktax.comparing.compare", broken)
    code, _, err = run("compare", "a", "b")
    assert code == cli.CRASHED
    assert code not in (0, 1, 2, 3, 130, 141)
    assert "Traceback" in err and "a fault of ours" in err.splitlines()[-1]


def test_signs_that_the_output_cannot_show_are_replaced(tmp_path):
    trace = Path(__file__).parents[1] / "data" / "h100-bert-small-step.json"
    done = subprocess.run(
        [sys.executable, "-m", "frameworktax", "explain", str(trace), "--json", "run.json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?" in done.stdout
    assert json.loads((tmp_path / "run.json").read_text())["trace"]


# --- text from anywhere ---------------------------------------------------------------------------


def is_harmless(text: str) -> bool:
    plain = text.replace("\n", "")
    return plain.isprintable() and flat(plain) == " ".join(plain.split())


def test_one_sanitiser_takes_out_what_drives_a_terminal():
    assert flat(DRIVES) == "]0;title nameeman 31m"
    assert is_harmless(flat(DRIVES)) and not is_harmless(DRIVES)
    assert flat("a\u2067b\u061cc\ufeffd") == "abcd"
    assert flat("naïve 名 ± –") == "naïve 名 ± –"
    assert is_harmless(errors.one_line(ValueError(DRIVES)))


@pytest.mark.parametrize("words", [("measure", DRIVES), ("store", "check", DRIVES), (DRIVES,)])
def test_errors_repeat_no_escape_sequence(run, words):
    assert is_harmless(one_line(run(*(word.replace("\x00", "") for word in words))))


HOSTILE = DRIVES + "<b>[red]|`"


@pytest.fixture
def hostile_store(tmp_path) -> Path:
    """Return a store whose models, notes and reasons carry what drives a terminal."""
    folder = tmp_path / "store"
    found = sample_records.sample_records()
    with store.Writer(folder, sample_records.SESSION) as writer:
        for record in found:
            writer.write(_renamed(record))
    return folder


def _renamed(record):
    if isinstance(record, records.Subject):
        workload = replace(record.point.workload, model=HOSTILE)
        known = NAMED.setdefault(record.point.key(), replace(record.point, workload=workload))
        return replace(record, point=known, notes=(records.Note("n", HOSTILE),))
    if isinstance(getattr(record, "point", None), str) and record.point in NAMED:
        record = replace(record, point=NAMED[record.point].key())
    return record


NAMED: dict[str, records.Point] = {}


@pytest.mark.parametrize(
    "words",
    [
        ("report", "store", "--verbose"),
        ("explain", "store"),
        ("store", "list", "store"),
        ("store", "check", "store"),
        ("compare", "store", "--runtime", "eager=onnxruntime", "-o", "compared.md"),
        ("report", "store", "--json", "-"),
    ],
    ids=" ".join,
)
def test_no_escape_sequence_reaches_the_terminal(run, hostile_store, words):
    _, out, err = run(*words)
    assert "nameeman" in out or words[1] == "check" or "u202e" in out
    assert is_harmless(out) and is_harmless(err)


def test_the_short_form_of_a_cell_drives_no_terminal_either():
    out = io.StringIO()
    long = table("", [right("name")], [[Cell("x" * 100, short=DRIVES)]])
    print_blocks([long], Console(file=out, width=40))
    assert flat(DRIVES) in out.getvalue()
    assert is_harmless(out.getvalue())


def test_no_committed_result_carries_one():
    root = Path(__file__).parents[2]
    found = [*root.glob("docs/results/**/*.json*"), *root.glob("benchmarks/results/*.json")]
    assert found
    drives = re.compile(r"\\u00(1b|9b)|\\u20(0[bef]|2[a-e]|6\d)|\x1b")
    assert [p.name for p in found if drives.search(p.read_text(encoding="utf-8"))] == []


# --- Markdown -------------------------------------------------------------------------------------


def test_html_in_names_is_no_markup_in_markdown():
    tag = "<script>alert(1)</script><img src=x>&lt;"
    text = markdown(
        [
            Heading(tag),
            Text(tag),
            table(tag, [tag], [[tag]], hint=tag),
            Items(tag, (Item(tag, tag, tag),)),
            Notes(tag, (Note("code", tag, tag),)),
        ]
    )
    assert "<" not in text
    assert text.count("&lt;script>") == text.count("&amp;lt;") == 13


@pytest.mark.parametrize("start", ["# ", "### ", "- ", "+ ", "> ", ">", "12. ", "3) ", "~~~"])
def test_a_name_begins_no_block_in_markdown(start):
    line = markdown([Text(f"{start}name")]).rstrip("\n")
    assert "\\" in line and line.replace("\\", "") == f"{start}name"


@pytest.mark.parametrize("name", ["-0.5 ms", "1.5 ms", "#1", "~/x", "−3 %"])
def test_other_names_are_as_they_were_in_markdown(name):
    assert markdown([Text(name)]) == f"{name}\n"


# --- files that are no files ----------------------------------------------------------------------


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path):
    for name in ("pipe.json", "pipe.csv", "pipe.toml", "pipe.sqlite"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(UsageError, match="no regular file"):
            explain(tmp_path / name)
        with pytest.raises(UsageError, match="no regular file"):
            study.read(tmp_path / name, [])
        with pytest.raises(errors.StoreError):
            store.read(tmp_path / name)


# --- studies --------------------------------------------------------------------------------------


def test_a_long_line_of_a_study_is_looked_at_once():
    """Spaces inside a bracket took 40 s: the time must not grow with their number squared."""
    text = STUDY + '[study.x]\nd = """\n[' + " " * 200_000 + '\n"""\n'
    assert study.Source("s", text).where(["grid", "models"]) == "s line 4: grid.models"


def test_headers_are_found_however_they_are_spaced():
    text = '[ study ]\nname = "s"\n\n[[ exclude ]] # one\nlength = 1\n[\tgrid . set ]\nx = 2\n'
    found = study.Source("s", text)
    assert found.where(["study", "name"]) == "s line 2: study.name"
    assert found.where(["grid", "set"]) == "s line 6: grid.set"
    assert found.where(["grid", "set", "x"]) == "s line 7: grid.set.x"


@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * 20_000) + " = 1",
        STUDY + "x = " + "[" * 50_000,
        STUDY + "batch = [" + "9" * 5_000 + "]",
        STUDY + "[grid.batch]\nx = 1",
        "study = 3\ngrid = [1]\nexclude = {a = 1}\noverride = [1]",
        "#" * (study.MAX_BYTES + 1),
    ],
    ids=["parts", "depth", "digits", "table", "types", "size"],
)
def test_a_study_that_would_take_minutes(tmp_path, run, text):
    (tmp_path / "s.toml").write_text(text)
    tracemalloc.start()
    try:
        one_line(run("sweep", "s.toml", "--dry-run"))
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


def test_an_override_of_many_parts_or_digits(tmp_path, run):
    (tmp_path / "s.toml").write_text(STUDY)
    one_line(run("sweep", "s.toml", ".".join("a" * 2000) + "=1", "--dry-run"))
    one_line(run("sweep", "s.toml", "grid.batch=" + "9" * 5000, "--dry-run"))


# --- traces and tables ----------------------------------------------------------------------------


def test_a_table_of_latencies_takes_memory_for_its_numbers_only(tmp_path):
    """400,000 rows took 1.3 GB: each line as lists of texts, and a bootstrap over all of them."""
    path = tmp_path / "l.csv"
    with path.open("w") as file:
        file.write("model,batch,latency_ms\n")
        file.writelines(f"m,{1 << i % 8},{1 + i % 97 / 1000}\n" for i in range(24_000))
    tracemalloc.start()
    try:
        run = readers.read(path)
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()
    assert [m.latency_ns.n for m in run.measurements] == [3000] * 8
    (curve,) = run.curves
    assert curve.free_batch.value == 128 and curve.free_is_lower_bound


# --- stores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["first_token_ns", "enqueue_ns"])
def test_a_block_with_times_of_another_length_is_refused_with_a_note(tmp_path, field):
    with store.Writer(tmp_path, "s") as writer:
        block = records.Block(
            session="s",
            point="0" * 16,
            process=0,
            round=0,
            latency_ns=(1, 2, 3),
            pipelined_ns=6,
            pipelined_calls=3,
            cpu_ns=6,
        )
        data = to_json(block)
        for round_, times in enumerate(([1, 1], [1, 1, 1], [1, 1, -1])):
            line = {**data, "round": round_, field: times}
            writer.write(json.dumps(line).encode())
    found, notes = store.read(tmp_path)
    assert [record.round for record in found] == [1]
    assert [note.code for note in notes] == ["bad-line"]
