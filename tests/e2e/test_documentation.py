"""The documentation is true: its examples run, its links lead somewhere, its words exist.

Blocks of bash, console and python run as a reader would run them, in order, in one folder for each
document, with one substitution: sessions measure nothing (`tests/data/fake_measuring.py`). A block
that is not run says why in a comment right above, and is a skipped test here with that reason.
"""

import ast
import functools
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import fake_measuring
import markdown_blocks
import pytest
from typer.main import get_command

from frameworktax import api, store
from frameworktax.analysis.bill import TWIN
from frameworktax.analysis.whatif.formulas import GRAPHED, RUNTIME, errors_shown
from frameworktax.cli import app
from frameworktax.records import RECORDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(page for page in DOCS.rglob("*.md") if DOCS / "results" not in page.parents),
]
EXAMPLES = sorted((ROOT / "examples").rglob("*.md"))
BLOCKS = [block for document in DOCUMENTS for block in markdown_blocks.blocks(document)]
RUN = ("bash", "console", "python")
KNOWN = {*RUN, "text", "json", "toml", "yaml", ""}
OTHERS = {
    "--cap-add": "docker",
    "--frameworktax-update": "pytest",
    "--hypothesis-profile": "pytest",
    "--nonblocking": "py-spy",
    "--rate": "py-spy",
    "--strict": "mypy",
}
"""Options of other programs, and whose they are."""


def name(block) -> str:
    return f"{block.document.name}-{block.line}-{block.language or 'plain'}"


# --- examples ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Return a document's folder, with the files that stand in it."""

    @functools.cache
    def made(document: Path) -> Path:
        folder = tmp_path_factory.mktemp(document.stem)
        markdown_blocks.write_files(document, folder)
        return folder

    return made


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in RUN and not b.file], ids=name)
def test_example(block, folder_of):
    if block.not_run is not None:
        pytest.skip(f"not run: {block.not_run}")
    folder = folder_of(block.document)
    if block.language == "console":
        check_session(block, folder)
        return
    if block.language == "bash":
        ran = fake_measuring.run(["bash", "-euo", "pipefail", "-c", block.text], folder)
    else:
        (folder / "example.py").write_text(block.text)
        ran = fake_measuring.run(["python", "example.py"], folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


def check_session(block, folder: Path) -> None:
    """Run what stands after ``$`` and compare what it prints with the lines below it."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        ran = fake_measuring.run(["bash", "-c", command], folder)
        assert (ran.stdout + ran.stderr).strip() == expected.strip()


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.file], ids=name)
def test_a_file_in_the_documentation_is_used(block):
    if block.language == "python":
        compile(block.text, str(block.file), "exec")
    rest = [b.text for b in BLOCKS if b.document == block.document and b is not block]
    assert Path(block.file).name == "pyproject.toml" or any(
        Path(block.file).stem in text for text in rest
    )


def test_every_block_says_what_it_is():
    """A block of an unknown language would be neither run nor missed."""
    assert {block.language for block in BLOCKS} <= KNOWN
    unnamed = [name(b) for b in BLOCKS if b.language in ("", "text") and "frameworktax " in b.text]
    assert unnamed == [], "commands belong into bash or console blocks"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "json"], ids=name)
def test_json(block):
    data = json.loads(block.text)
    if data.get("schema") == store.HEADER["schema"]:
        assert data == store.HEADER
    elif "record" in data:
        cls = RECORDS[data.pop("record")]
        assert set(data) == {field.name for field in fields(cls)}
        store.decode(cls, data)


def test_what_stands_for_results_is_made_of_results():
    if not (ROOT / "docs" / "results" / "demo" / "run.json").exists():
        pytest.skip("no results yet: make demo, then make readme")
    words = [sys.executable, str(ROOT / "benchmarks" / "readme.py"), "--check"]
    subprocess.run(words, cwd=ROOT, check=True, env={**os.environ, "COLUMNS": "80"})


# --- links ------------------------------------------------------------------------------------


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    found = re.findall(r"^#+ +(.+)$", markdown_blocks.prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def links(document: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", markdown_blocks.prose(document))


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, *EXAMPLES], ids=lambda d: f"{d.parent.name}-{d.name}"
)
def test_links_lead_somewhere(document):
    for link in links(document):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(target), link


def navigation(entries: list) -> set[str]:
    """Return the pages that the site's navigation names."""
    found = set()
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            found |= navigation(value) if isinstance(value, list) else {value}
    return found


def test_every_page_is_reached_from_the_readme_or_the_navigation():
    yaml = pytest.importorskip("yaml", reason="pip install 'frameworktax[docs]'")
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    reached = {(ROOT / link.partition("#")[0]).resolve() for link in links(ROOT / "README.md")}
    assert {d for d in DOCUMENTS if d.parent == ROOT} - {ROOT / "README.md"} <= reached | {
        ROOT / "CHANGELOG.md"
    }
    told = {DOCS / page for page in navigation(config["nav"])}
    assert {d for d in DOCUMENTS if DOCS in d.parents} <= told


# --- words ------------------------------------------------------------------------------------


@functools.cache
def options() -> set[str]:
    """Return every option of the command line."""
    found, waiting = {"--help", "--version"}, [get_command(app)]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        found |= {
            name
            for parameter in command.params
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
    return found


TODAY = [document for document in DOCUMENTS if document.name != "CHANGELOG.md"]


@pytest.mark.parametrize("document", TODAY, ids=lambda d: d.name)
def test_options_exist(document):
    spans = re.findall(r"`([^`\n]+)`", markdown_blocks.prose(document))
    lines = [span for span in spans if re.match(r"--|frameworktax |py-spy ", span)]
    for block in markdown_blocks.blocks(document):
        if block.language in ("bash", "console"):
            joined = block.text.replace("\\\n", " ")
            lines += [line for line in joined.splitlines() if "frameworktax " in line]
    named = {option for line in lines for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line)}
    assert named - options() - OTHERS.keys() == set()


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"(?:`|^)make ([a-z-]+)", document.read_text(), re.MULTILINE))
        assert named <= targets, document.name


def test_extras_exist():
    import tomllib

    have = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sentence = re.search(r"Optional extras:(.*?);", (ROOT / "README.md").read_text(), re.S)
    assert set(re.findall(r"`([\w-]+)`", sentence[1])) == have.keys() - {"all", "dev", "docs"}


READING = ROOT / "docs" / "reading.md"
NOTES = re.findall(r"^- ((?:`[a-z-]+`[,\s]*)+)[:.]", READING.read_text(), re.MULTILINE)
EXPLAINED = [code for codes in NOTES for code in re.findall("`(.+?)`", codes)]


def note_codes() -> set[str]:
    """Return the codes in the source: first of ``Note(code, text)`` or of a pair (code, text)."""
    found = set()
    for path in (ROOT / "src" / "frameworktax").rglob("*.py"):
        if path.parent.name == "report" or path.name == "blocks.py":  # what pages alone have
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            is_note = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Note"
            match node.args if is_note else getattr(node, "elts", ()):
                case [ast.Constant(value=str(code)), text] if code:
                    word = getattr(text, "value", None)
                    is_word = isinstance(word, str) and " " not in word
                    if is_note or (re.fullmatch("[a-z]+(-[a-z]+)+", code) and not is_word):
                        found.add(code)
    return found


def test_every_note_is_explained_once():
    codes = note_codes()
    assert len(codes) > 50
    assert sorted(code for code in EXPLAINED if code in codes) == sorted(codes)


def test_every_status_and_every_line_of_the_bill_is_explained():
    from frameworktax.records import BILL, STATUSES

    rows = set(re.findall(r"^\| `?([\w -]+?)`? \|", READING.read_text(), re.MULTILINE))
    assert {line.replace("_", " ") for line in BILL} <= rows
    assert set(STATUSES) - {"ok"} <= rows


def test_architecture_names_every_package():
    source = ROOT / "src" / "frameworktax"
    text = (ROOT / "docs" / "architecture.md").read_text()
    folders = {path.name for path in source.iterdir() if (path / "__init__.py").exists()}
    assert {name for name in folders if f"`{name}/`" not in text} == set()


CALIBRATIONS = [
    ("calibration", way)
    for way in (
        "within a session", "series 2", "series 2, 2 baselines", "series 2, 3 baselines",
        "series 1", "any two sessions", "second halves, held out",
    )
] + [
    ("calibration_noisy_host", "within a session"), ("calibration_noisy_host", "any two sessions"),
    ("calibration_xeon", "within a session"), ("calibration_xeon", "neighbouring sessions"),
    ("calibration_xeon", "any two sessions"), ("calibration_xeon", "series 1, 3 baselines"),
]  # fmt: skip
"""What each row of the table in ci.md is of, in its order."""


def test_how_often_a_comparison_is_right_is_what_was_measured():
    table = (DOCS / "ci.md").read_text().partition("| pairs | same code")[2].partition("\n\n")[0]
    rows = [row.split("|")[1:-1] for row in table.splitlines()[2:]]
    for row, (file, way) in zip(rows, CALIBRATIONS, strict=True):
        path = ROOT / "benchmarks" / "results" / f"{file}.json"
        same, slow5, slow10 = json.loads(path.read_text())["parts"]["pairs"]["ways"][way].values()
        assert f"({same['pairs']:,}" in row[0]
        assert re.findall("; (.*) slowed", row[0]) in ([], [str(slow10["pairs"])])
        widths, covers = (
            [program[name] for program in (same, slow5, slow10)]
            for name in ("median_half_width", "coverage")
        )
        found = ([same["alarms"]], [slow10["alarms"]], [slow5["slower"]], widths, covers)
        for text, values in zip(row[1:], found, strict=True):
            shown = re.findall(r"\d+(?:\.(\d+))?", text), re.findall(r"[\d.]+", text)
            for digits, number, value in zip(*shown, (min(values), max(values)), strict=False):
                assert abs(float(number) - 100 * value) <= 0.5 * 10.0 ** -len(digits) + 0.01, row
            assert len(shown[1]) == 2 or max(values) - min(values) < 0.01, row


RESULTS = ROOT / "benchmarks" / "results"


def result(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def checked(name: str, words: str) -> list[float]:
    """Return what a benchmark found in the checks that a pattern is found in."""
    return [one["value"] for one in result(name)["checks"] if re.search(words, one["check"])]


def ends(values, form: str) -> str:
    """Return ``0.987 to 1.023``."""
    return f"{min(values):{form}} to {max(values):{form}}"


def on_its_line(name: str, work: str) -> str:
    """Return ``93 % (80 to 98)``: how much of added work the right line shows."""
    found = (c["shown"] for c in result(name)["checks"] if f"work added to {work}" in c["check"])
    return re.sub(r" %\).*", ")", next(found))


def coverages(host: str = "", processes=(3, 5), quantity: str = "", lost=()) -> list[float]:
    """Return coverages of simulated intervals, without those of ``lost`` = (host, processes)."""
    return [
        row["coverage"]
        for row in result("intervals")["rows"]
        if re.search(host, row["host"]) and row["processes"] in processes
        if re.search(quantity, row["quantity"]) and (row["host"], row["processes"]) != lost
    ]


def covered(most: int) -> str:
    """Return the coverages of rounds that end by the rules, in so many processes at most."""
    rows = result("intervals")["stopped"]
    return ends([row["coverage"] for row in rows if row["most_processes"] == most], ".2f")


def said_of_checks():
    """Yield what method.md has to say of the committed results, a piece each."""
    here, xeon = (checked(name, "") for name in ("known_answers", "known_answers_xeon"))
    yield f"| {ends(here, '.3f')}, {ends(xeon, '.3f')} of it on the right line |"
    for name in ("calibration", "calibration_noisy_host", "calibration_xeon"):
        yield ", ".join(on_its_line(name, work) for work in ("the host", "kernels"))
    yield f"{ends([100 * x for x in checked('cost', 'sampler')], '.0f')} % longer"
    near, far, *_ = checked("stripped", "kernel share by machine code")
    yield f"within 2 points in {18 * near:.0f}, at most {100 * far:.1f}"
    yield f"{ends(checked('stripped', 'slope'), '.3f')} of it"
    yield "{:.1f} and {:.1f} points below".format(
        *(-100 * x for x in checked("stripped", "beyond that by clocks"))
    )
    yield f"come back as {ends(checked('layers', 'spin of'), '.2f')} of themselves"
    holds, took = checked("layers", "own clocks say|processor time of a call")
    yield f"in {100 * holds:.0f} % of 160 cases; processor time grows by {100 * took:.1f} %"
    yield f"latency {checked('run_cost', 'latency ratio')[0]:.3f} (0.985 to 1.010) of it"
    yield f"tax share −{-100 * checked('run_cost', 'tax difference')[0]:.1f} points"
    small, large = checked("forked", "forking hides")
    yield f"{100 * large:.1f} % (1.3 to 4.7) for bert-tiny, {100 * small:.1f} % (−1.0 to 1.1)"
    slower = [x for one in result("huge_pages")["parts"].values() for x in one["first"].values()]
    yield f"up to {max(slower):.2f} times as long"
    twos = "processes in two states"
    bounded = "latency|share|ratio"
    yield f"| {ends(coverages(quantity=bounded, lost=(twos, 3)), '.2f')} |"
    yield f"| {ends(coverages(quantity='free'), '.2f')} |"
    moves = coverages("drifting|two-state", [1], "latency")
    yield f"{ends(coverages('bursty', [1], 'latency'), '.2f')}; {ends(moves, '.2f')}, up to"
    yield "; ".join(ends(coverages(twos, [3], of), ".2f") for of in ("latency", "share"))
    yield f"{covered(3)}; {covered(12)}"
    held = checked("calibration", "intervals of latency")
    yield f"| {held[0]:.2f}; 0.80 of 136 |"
    timers = checked("agreement", "against (blocked|timeit)")
    yield "6 of 8 within 3 %, else " + ", ".join(
        f"−{-100 * x:.1f}" for x in timers if abs(x) > 0.03
    )
    assert all(abs(x) <= 0.03 for n in (1, 2) for x in checked(f"agreement_timers_{n}", "against"))
    yield f"at most [{100 * abs(checked('agreement', 'under two names')[0]):.1f} %]"
    yield f"[{checked('agreement', 'null')[0]:.0f}]"
    yield f"[{checked('cost', 'null')[0]:.0f} ns]"
    answers = (RESULTS / "first_answer.json").read_text()
    own = re.findall(r'"own_tax": {\s*"share": ([\d.]+)', answers)
    yield f"[{ends([100 * float(x) for x in own], '.0f')} %]"
    regime = result("regime")
    yield f"{regime['models']} GPU models at {regime['batches']} batch sizes: "
    yield f"{100 * regime['accuracy']:.0f} % as the truth has it"
    yield f"(by flatness in {100 * regime['confused_by_flatness']:.1f} %)"
    cpu, gpu = errors_shown()[RUNTIME], errors_shown()[GRAPHED]
    yield f"off by {100 * cpu['median']:.1f} % at the median, {100 * cpu['p95']:.1f} % at the 95th"
    yield f"percentile of {cpu['n']} checks"
    yield f"off by {100 * gpu['median']:.1f} % at the median, 6.5 % at most in {gpu['n']} cases"
    every, full = warm_over_tax(0), warm_over_tax(1)
    yield f"the {len(every)} points"
    yield f"W was {ends(every, '.2f')} of T, at full width {ends(full, '.2f')} ("
    yield f"the most seen is {1 / min(every):.1f} "


def warm_over_tax(width: float) -> list[float]:
    """Return warm overhead over tax of models so wide, where the tax is known to 10 % of itself."""
    stores = [DOCS / "results" / "paper-store", *(DOCS / "results").glob("*/store")]
    return [
        m.warm_overhead_ns.value / m.tax_ns.value
        for folder in stores
        for m in api.read_store(folder).run.measurements
        if m.warm_overhead_ns and m.tax_ns and m.bill_method != TWIN
        if m.tax_ns.high - m.tax_ns.low < 0.2 * m.tax_ns.value and m.workload.width >= width
    ]


def test_numbers_of_the_method_are_those_of_the_results():
    text = " ".join((DOCS / "method.md").read_text().split())
    assert [said for said in said_of_checks() if said not in text] == []
    page = (DOCS / "results" / "gpu.md").read_text()
    on_device = ("1.016", "1.008", "1.000", "1.037", "1.002", "1.352", "1.518")
    assert [x for x in on_device if f": {x} |" not in page or x not in text] == []
    assert "31 of 32 checks passed" in page
