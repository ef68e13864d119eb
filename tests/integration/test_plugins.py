"""The examples of CONTRIBUTING.md as a package of its own: found by name, listed, measured.

The files and the commands are taken from the document. The package is not installed, for that
would need the network: beside its files stands the metadata that installing would have written.
"""

import json
import os
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import hurried
import markdown_blocks
import pytest

from frameworktax import models, runtimes
from frameworktax.errors import UsageError
from frameworktax.records import Workload

DOCUMENT = Path(__file__).parents[2] / "CONTRIBUTING.md"
MODULE = ("-m", "frameworktax")


def install(folder: Path) -> dict:
    """Write the package's files and its metadata; return its ``[project]`` table."""
    markdown_blocks.write_files(DOCUMENT, folder)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    name = project["name"].replace("-", "_")
    metadata = folder / f"{name}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return project


def commands() -> list[list[str]]:
    """Return the document's ``frameworktax`` commands, as words."""
    texts = [b.text for b in markdown_blocks.blocks(DOCUMENT) if b.language == "bash"]
    lines = "\n".join(texts).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("frameworktax ")]


def command(*start: str) -> list[str]:
    (found,) = [words for words in commands() if tuple(words[: len(start)]) == start]
    return found


def run(folder: Path, words: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-P", *(hurried.PROGRAM if "measure" in words else MODULE), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def plugin(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    install(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "name"), [("runtimes", "example-runtime"), ("models", "example-model")]
)
def test_it_is_listed(plugin, kind, name):
    ran = run(plugin, command("list", kind))
    assert ran.returncode == 0, ran.stderr
    (row,) = [row for row in json.loads(ran.stdout) if row["name"] == name]
    if kind == "runtimes":
        assert row["paradigm"] == "deferred"
        assert row["available"] or "torch not installed" in row["reason"]
    else:
        assert row["summary"] == "from example_plugin.model:build"


@pytest.mark.timeout(1200)
def test_it_is_measured(plugin):
    """As the document has it, with so much time that a busy machine measures it too."""
    pytest.importorskip("torch")
    words = command("measure")
    for option, value in (("--time-budget", "15min"), ("--until", "90%")):
        words[words.index(option) + 1] = value
    ran = run(plugin, [*words, "--twin", "all"])
    assert ran.returncode == 0, ran.stderr
    document = json.loads((plugin / words[words.index("--json") + 1]).read_text())
    found = {m["runtime"]: m for m in document["measurements"]}
    assert {"eager", "example-runtime"} <= found.keys()
    ours = found["example-runtime"]
    assert ours["status"] == "ok" and ours["latency_ns"]["value"] > 0
    assert ours["workload"]["model"] == "example-model"
    assert ours["parity"]["within_tolerance"] is True
    assert ours["ratio_to_eager"] is not None
    assert "example-traced" in [note["code"] for note in ours["notes"]]
    assert found["eager"]["warm_overhead_ns"] is not None, "the example model has a twin"


def test_a_taken_name_is_an_error_that_names_the_second(plugin, tmp_path):
    second = tmp_path / "second-1.dist-info"
    second.mkdir()
    (second / "METADATA").write_text("Metadata-Version: 2.1\nName: second\nVersion: 1\n")
    (second / "entry_points.txt").write_text(
        f"[{runtimes.GROUP}]\nexample-runtime = other_package.runtime:Other\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "frameworktax", "list", "runtimes"],
        env={**os.environ, "PYTHONPATH": f"{plugin}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert "'example-runtime'" in line and "other_package.runtime" in line


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"phase": "generate", "new_tokens": 1, "kv_cache": "none"}, "generates no text"),
        ({"input": "ragged"}, "input_ids.*attention_mask"),
        ({"channels_last": True}, "--channels-last"),
        ({"width": 0.0}, r"--width 0\.0"),
    ],
)
def test_what_an_outside_model_cannot_do_is_an_error(plugin, monkeypatch, asked, said):
    """It builds its module; what else a workload may ask for is seen by what it built."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(plugin))
    point = EntryPoint("example-model", "example_plugin.model:build", models.GROUP)
    monkeypatch.setattr(models, "entry_points", lambda group: [point])
    assert models.build(Workload(model="example-model", depth=0.25)).inputs(2).args[0].shape[0] == 2
    ghost = models.build(Workload(model="example-model"), "meta")
    assert all(p.is_meta for p in ghost.module.parameters())
    with pytest.raises(UsageError, match=said):
        models.build(Workload(model="example-model", **asked))
