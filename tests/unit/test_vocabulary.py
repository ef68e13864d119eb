"""One concept, one name: command line, documents, reports and pages say what the records say."""

import ast
import importlib
import inspect
import json
import re
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from typer.main import get_command

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import markdown_blocks
import source_notes

import frameworktax
from frameworktax import records, runtimes
from frameworktax.analysis import comparison
from frameworktax.cli import app
from frameworktax.cli.schema import DOCUMENTS
from frameworktax.report import compare_words, markdown, palette, terminal, words
from frameworktax.study import schema as study

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(p for p in DOCS.rglob("*.md") if DOCS / "results" not in p.parents),
]
REGIMES = get_args(records.Regime)
VERDICTS = get_args(comparison.Verdict)
METRICS = get_args(comparison.Metric)
KINDS = get_args(get_type_hints(records.Advice)["kind"])
COMMANDS = get_command(app).commands


def described(name):
    return importlib.import_module(DOCUMENTS[name]).schema()


def section(page, heading):
    """Return what stands under a heading of a page, up to the next of its level or above."""
    text = (DOCS / page).read_text()
    level, begin = re.search(rf"^(#+) {re.escape(heading)}$\n", text, re.M), 0
    assert level, f"{page} has no heading '{heading}'"
    begin = level.end()
    end = re.search(rf"^#{{1,{len(level[1])}}} ", text[begin:], re.M)
    return text[begin : begin + end.start() if end else None]


def rows(text):
    """Return the rows of the tables in a text, heads left out, as lists of cells."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rules = [i for i, row in enumerate(cells) if set(row[0]) <= set("-: ")]
    return [row for i, row in enumerate(cells) if i not in rules and i + 1 not in rules]


def bold(text):
    return re.findall(r"\*\*([^*]+)\*\*", text)


def help_of(verb, option):
    found = [p.help for p in COMMANDS[verb].params if option in p.opts]
    assert found, f"{verb} has no {option}"
    return found[0]


# --- the report -------------------------------------------------------------------------------


def test_the_report_has_every_line_of_the_bill_and_no_other():
    for table in (words.MEANINGS, terminal.LINE_STYLES, terminal.LETTERS):
        assert set(table) == set(records.BILL)
    columns = [c for c in markdown.CSV_FIELDS if c.startswith("bill_") and c.endswith("_ns")]
    assert columns == [f"bill_{line}_ns" for line in records.BILL]


def test_the_report_has_every_regime_and_no_other():
    for table in (words.REGIME_MARKS, terminal.REGIME_STYLES, palette.BANDS):
        assert set(table) == set(REGIMES)
    assert set(palette.SHAPES) == {*REGIMES, palette.UNKNOWN}
    assert len(set(words.REGIME_MARKS.values())) == len(REGIMES)


def test_the_report_has_every_verdict_and_no_other():
    assert set(compare_words.MARKS) == set(VERDICTS)


# --- the command line and studies -------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "option", "values"),
    [
        ("measure", "--input", records.INPUTS),
        ("measure", "--phase", records.PHASES),
        ("measure", "--kv-cache", records.KV_CACHES),
        ("measure", "--precision", records.PRECISIONS),
        ("compare", "--metric", METRICS),
    ],
)
def test_help_names_every_value(verb, option, values):
    said = set(re.findall(r"[\w-]+", help_of(verb, option)))
    assert set(values) <= said


def test_studies_take_the_values_of_the_records():
    assert study.INPUTS == records.INPUTS
    assert study.PHASES == records.PHASES
    assert study.CACHES == records.KV_CACHES


@pytest.mark.parametrize(
    ("verb", "others"),
    [
        ("measure", {"inputs", "length_mean", "length_sd", "reporter", "command"}),
        ("compare", set()),
    ],
)
def test_python_says_what_the_command_line_says(verb, others):
    """An option has the name of the parameter; writing files is the command line's own."""
    parameters = set(inspect.signature(getattr(frameworktax, verb)).parameters) - others
    own = {"json", "report", "quiet", "verbose", "output", "format", "save_baseline", "help"}
    plural = {"runtime": "runtimes", "model": "models"} if verb == "compare" else {}
    options = {
        plural.get(name, name)
        for p in COMMANDS[verb].params
        for opt in [p.opts[-1] if p.opts[-1].startswith("--") else p.name]
        for name in [opt.removeprefix("--").replace("-", "_")]
    }
    assert options - own == parameters


def test_every_key_of_a_study_is_explained():
    page = section("studies.md", "The file")
    keys = {name for row in rows(page) for name in re.findall(r"`(\w+)`", row[0])}
    assert set(study.Settings.model_fields) <= keys
    axes = page.partition("Axes:")[2].partition("\n\n")[0]
    assert set(study.Axes.model_fields) == set(re.findall(r"`(\w+)`", axes)) - {"local", "cpu"}


# --- documents --------------------------------------------------------------------------------


def enumerations(value, name=""):
    """Yield (field, values) of everything in a schema that may only have certain values."""
    if isinstance(value, dict):
        if "enum" in value:
            yield name, tuple(value["enum"])
        for key, item in value.items():
            yield from enumerations(item, key if key not in ("anyOf", "items") else name)
    elif isinstance(value, list):
        for item in value:
            yield from enumerations(item, name)


def test_documents_allow_the_values_of_the_records():
    run = dict(enumerations(described("run")))
    assert run["status"] == records.STATUSES
    assert run["regime"] == run["regimes"] == REGIMES
    assert run["kind"] == KINDS
    compared = dict(enumerations(described("comparison")))
    assert compared["verdict"] == VERDICTS
    assert compared["metric"] == METRICS


def field_names():
    """Return every field of a record, a document or a table."""
    found = set(markdown.CSV_FIELDS)
    for item in vars(records).values():
        if isinstance(item, type) and is_dataclass(item):
            found |= {field.name for field in fields(item)}
    for name in DOCUMENTS:
        found |= set(re.findall(r'"(\w+)": \{', json.dumps(described(name))))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_fields_named_on_a_page_exist(page):
    """What ends in a unit is a field; the ends of an interval are columns of the tables."""
    named = set(re.findall(r"`(\w+_(?:ns|bytes|share|mj|mhz))`", markdown_blocks.prose(page)))
    # Of a trace, which is plain data in the document; of what a sweep returns.
    elsewhere = {"device_wall_ns", "spent_ns"}
    assert named - elsewhere <= field_names()


# --- pages ------------------------------------------------------------------------------------


def test_the_tables_of_reading_are_those_of_the_code():
    letters = {row[0]: row[1] for row in rows(section("reading.md", "Latency"))}
    assert {regime: mark for mark, regime in letters.items()} == words.REGIME_MARKS
    lines = [row[0] for row in rows(section("reading.md", "Where the time goes"))]
    assert lines == [words.label(line) for line in records.BILL]
    statuses = [row[0].strip("`") for row in rows(section("reading.md", "Not measured"))]
    assert set(statuses) == set(records.STATUSES) - {"ok"}
    assert set(bold(section("reading.md", "What to do"))) == set(KINDS)


def test_the_verdicts_of_comparing_are_those_of_the_code():
    said = bold(section("ci.md", "What a verdict means"))
    assert set(said) == {*VERDICTS, "beyond the gate"}
    metrics = re.search(
        r"`--metric ([a-z|]+)` are times; `--metric ([a-z]+)`", (DOCS / "ci.md").read_text()
    )
    assert {*metrics[1].split("|"), metrics[2]} == set(METRICS)


def test_the_table_of_runtimes_has_every_name():
    named, paradigms = set(), set()
    for row in rows(section("runtimes.md", "By name")):
        listed = re.findall(r"`([\w@-]+)`", row[0])
        named |= {name for name in listed if "@" not in name}
        paradigms.add(row[1].replace(" ", "-"))
    assert named == set(runtimes.BUILT_IN)
    assert paradigms == {runtimes.get(name).paradigm for name in runtimes.BUILT_IN}


SYNONYMS = {
    r"framework overheads?": "framework tax",
    r"(?:overhead|host|launch|dispatch)-bound": "framework-bound",
    r"(?:kernel|arithmetic|math|device)-bound": "compute-bound",
    r"bandwidth-bound": "memory-bound",
    r"(?:math|compute|arithmetic) time": "kernel time",
    r"(?:dispatcher|dispatching) overhead": "dispatch",
    r"interpreter overhead": "python",
    r"warm ?ups?": "warm-up",
    r"speed-?ups?": "gain",
    r"sequence lengths?": "length",
    r"jagged|variable-length": "ragged",
    r"mini-?batch(?:es)?": "batch",
    r"confidence intervals?": "interval",
    r"back-?ends?": "runtime",
    r"graph captures?": "graph replay",
}
"""What others call it, and the name it has here."""
QUOTED = re.compile(r"`[^`\n]+`|\"[^\"\n]+\"|\]\([^)]*\)|https?://\S+")
ALLOWED = {
    "studies.md": {"back-ends"},  # optimum-benchmark's own word, for what is taken over from it
}


def synonyms(text):
    text = QUOTED.sub("", text)
    return {
        found[0]: word
        for pattern, word in SYNONYMS.items()
        for found in re.finditer(rf"(?<![\w-])(?:{pattern})(?![\w-])", text, re.IGNORECASE)
    }


def test_synonyms_are_found_where_there_are_any():
    assert synonyms("It is host-bound after warmup, by `speedup`.") == {
        "host-bound": "framework-bound",
        "warmup": "warm-up",
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_pages_have_no_second_name_for_a_thing(page):
    found = synonyms(markdown_blocks.prose(page))
    assert {
        said: word for said, word in found.items() if said not in ALLOWED.get(page.name, ())
    } == {}


def test_help_has_no_second_name_for_a_thing():
    for verb, command in COMMANDS.items():
        told = [command.help or "", *(p.help or "" for p in getattr(command, "params", []))]
        assert synonyms("\n".join(told)) == {}, verb


def told_by(package):
    """Return the texts in a package that people may see: docstrings and bare names left out."""
    found = set()
    for path in sorted((source_notes.SOURCE / package).rglob("*.py")):
        tree = ast.parse(path.read_text())
        silent = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.expr) and id(node) not in silent:
                text = source_notes.template(node)
                if text is not None and " " in text:
                    found.add(text)
    return found


@pytest.mark.parametrize("package", ["analysis", "report", "reproduce", "ablate", "campaign"])
def test_what_is_told_has_no_second_name_for_a_thing(package):
    texts = told_by(package)
    assert texts
    assert {text: found for text in texts if (found := synonyms(text))} == {}
