"""The wheel: what is in it, and what it does where none of its extras is installed.

The environment is a virtual one without pip. What the wheel needs, and nothing else, is linked into
it from the environment that runs the tests: the closure of the requirements, extras left out.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import hurried
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "frameworktax"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MOST_BYTES = 3_000_000
NET = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU()), torch.randn(1, 32)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    python("hatchling", "build", "--target", "wheel", "--directory", str(folder))
    (built,) = folder.iterdir()
    return built


def python(*words: str) -> None:
    """Run a module with this interpreter."""
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


RUN_EACH = """
import contextlib, io, json, os, sys
from frameworktax import cli
found = []
for words in json.loads(sys.argv[1]):
    out, err, before = io.StringIO(), io.StringIO(), sorted(os.listdir())
    sys.argv = ["frameworktax", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main() or 0
        except SystemExit as left:
            code = left.code or 0
    found.append([code, out.getvalue(), err.getvalue(), sorted(os.listdir()) == before])
print(json.dumps(found))
"""


class Clean:
    """An environment that holds the wheel and the closure of what it needs."""

    def __init__(self, folder: Path, wheel: Path, *further: str) -> None:
        venv.EnvBuilder(symlinks=True).create(folder / "env")
        self.bin = folder / "env" / "bin"
        (site,) = (folder / "env").glob("lib/python*/site-packages")
        needed = [Requirement(text) for text in PROJECT["dependencies"]]
        for distribution in closure([*(r.name for r in needed), *further]):
            link(distribution, site)
        into = ("--python", str(self.bin / "python"), "--disable-pip-version-check")
        python("pip", *into, "install", "--quiet", "--no-deps", "--no-compile", str(wheel))
        self.work = folder / "work"
        self.work.mkdir()
        (self.work / "net.py").write_text(NET)

    def __call__(self, *command: str, **variables: str) -> subprocess.CompletedProcess:
        kept = {k: v for k, v in os.environ.items() if k.startswith(("FRAMEWORKTAX_", "LANG"))}
        own = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.work), "COLUMNS": "80"}
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.work,
            env={**kept, **own, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def each(self, lines: list[list[str]]) -> list[tuple[int, str, str, bool]]:
        """Run commands one after the other in one process, which imports what they share once.

        Return of each its exit code, output, errors, and whether it left the folder as it was.
        """
        ran = self("python", "-c", RUN_EACH, json.dumps(lines))
        assert ran.returncode == 0, ran.stderr
        return [tuple(found) for found in json.loads(ran.stdout)]


def closure(names: list[str]) -> list[importlib.metadata.Distribution]:
    """Return the distributions of these names and all that they need, extras left out."""
    found: dict[str, importlib.metadata.Distribution] = {}
    left = list(names)
    while left:
        key = canonicalize_name(left.pop())
        if key in found:
            continue
        found[key] = importlib.metadata.distribution(key)
        for text in found[key].requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(requirement.name)
    return list(found.values())


def link(distribution: importlib.metadata.Distribution, site: Path) -> None:
    """Link what a distribution put into its site-packages, folder by folder."""
    for top in {path.parts[0] for path in distribution.files or ()} - {"..", "__pycache__"}:
        if not (site / top).exists():
            (site / top).symlink_to(distribution.locate_file(top))


@pytest.fixture(scope="module")
def bare(tmp_path_factory, wheel) -> Clean:
    """Return an environment with what ``pip install frameworktax`` brings."""
    return Clean(tmp_path_factory.mktemp("bare"), wheel)


@pytest.fixture(scope="module")
def plain(tmp_path_factory, wheel) -> Clean:
    """Return the same with torch; a store of a measured module is in its folder."""
    made = Clean(tmp_path_factory.mktemp("plain"), wheel, "torch")
    words = ["net.py:build", "--runtimes", "eager,inference-mode", "--batch", "1"]
    how = ["--processes", "1", "--until", "50%", "--time-budget", "1h"]
    words = ["measure", *words, *how, "--json", "run.json"]
    made.measured = made("python", *hurried.PROGRAM, *words)
    return made


# --- the wheel ----------------------------------------------------------------------------------


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    assert wheel.stat().st_size < MOST_BYTES
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    about = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    files = {
        str(path.relative_to(SOURCE.parent))
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert names - about == files
    assert {name.partition("/")[2] for name in about} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"
    }  # fmt: skip


def test_the_wheel_says_what_it_needs(wheel):
    with zipfile.ZipFile(wheel) as packed:
        (path,) = (name for name in packed.namelist() if name.endswith("/METADATA"))
        metadata = packed.read(path).decode()
    lines = metadata.partition("\n\n")[0].splitlines()
    extras = {line.removeprefix("Provides-Extra: ") for line in lines if "Provides-E" in line}
    assert extras == set(PROJECT["optional-dependencies"])
    needs = [line for line in lines if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert len(needs) == len(PROJECT["dependencies"])


# --- without extras -----------------------------------------------------------------------------


def test_the_environments_hold_no_extra(plain, bare):
    """Or what follows would prove nothing."""
    code = (
        "import importlib.util as u, sys; print([n for n in sys.argv[1:] if u.find_spec(n)]); "
        "import frameworktax; print(frameworktax.__file__)"
    )
    optional = ["torch", "transformers", "timm", "torchvision", "onnxruntime", "openvino"]
    optional += ["vl_convert", "pandas", "pyarrow", "ray", "pytest", "pip", "yaml"]
    for environment, there in ((plain, ["torch"]), (bare, [])):
        found, file = environment("python", "-c", code, *optional).stdout.splitlines()
        assert found == str(there)
        assert Path(file).is_relative_to(environment.bin.parent)


def test_a_plain_module_is_measured(plain):
    assert plain.measured.returncode == 0, plain.measured.stderr
    run = json.loads((plain.work / "run.json").read_text())
    found = [m for m in run["measurements"] if m["runtime"] != "null"]
    assert [m["runtime"] for m in found] == ["eager", "inference-mode"]
    assert {m["status"] for m in found} == {"ok"}
    assert all(m["latency_ns"]["value"] > 0 for m in found)
    if run["environment"]["sampler"]:
        assert all(m["tax_share"] is not None for m in found)
    beginning = " ".join(run["headline"].split()[:4])
    assert "net.py:build" in beginning
    assert beginning in " ".join(plain.measured.stdout.split())


WORK = [
    ["--version"],
    ["list", "runtimes"],
    ["list", "studies"],
    ["doctor"],
    ["schema"],
    ["report", "frameworktax-results"],
    ["report", "frameworktax-results", "-o", "report.md"],
    ["report", "frameworktax-results", "-o", "report.csv"],
    ["explain", "frameworktax-results", "--host-speed", "2"],
    ["compare", "frameworktax-results", "--runtime", "eager=inference-mode"],
    ["store", "check", "frameworktax-results"],
    ["init", "study.toml"],
]


def test_what_needs_no_extra_works(plain):
    assert plain("frameworktax", "--version").returncode == 0
    for words, (code, _, err, _) in zip(WORK, plain.each(WORK), strict=True):
        assert code in (0, 3), (words, err)
        assert "Traceback" not in err, words


def test_models_and_runtimes_name_what_they_miss(plain):
    listed = plain.each([["list", "models", "--json"], ["list", "runtimes", "--json"]])
    models, runtimes = (json.loads(out) for _, out, *_ in listed)
    missing = {row["name"]: row["missing"] for row in models if row["missing"]}
    assert {"bert-tiny", "alexnet", "torchvision:NAME", "timm:NAME", "hf:NAME"} <= missing.keys()
    assert not {"mlp", "resnet-18", "lstm"} & missing.keys()
    for name, reason in missing.items():
        assert extra_of(reason) in PROJECT["optional-dependencies"], name
    for row in runtimes:
        reason = row["reason"] or ""
        if not row["available"] and "GPU" not in reason and "cuda" not in reason:
            assert " install" in reason, row


def extra_of(line: str) -> str:
    """Return the extra that a message asks to install."""
    return line.partition("pip install 'frameworktax[")[2].partition("]'")[0]


MISSING = [
    ("bare", ["measure", "net.py:build"], "torch"),
    ("bare", ["measure", "mlp"], "torch"),
    ("plain", ["measure", "bert-tiny"], "models"),
    ("plain", ["measure", "poolformer"], "models"),
    ("plain", ["measure", "alexnet"], "vision"),
    ("plain", ["measure", "timm:vit_tiny_patch16_224"], "vision"),
    ("plain", ["measure", "onnx:net.onnx"], "onnxruntime"),
    ("plain", ["measure", "net.py:build", "--runtimes", "onnxruntime"], "onnxruntime"),
    ("plain", ["measure", "net.py:build", "--runtimes", "openvino"], "openvino"),
    ("plain", ["measure", "net.py:build", "--report", "page.html"], "report"),
    ("plain", ["explain", "frameworktax-results", "--report", "page.html"], "report"),
    ("plain", ["report", "frameworktax-results", "-o", "page.html"], "report"),
    ("plain", ["report", "frameworktax-results", "-o", "x.png"], "report"),
    ("plain", ["report", "frameworktax-results", "-o", "x.parquet"], "parquet"),
    ("plain", ["sweep", "ray.toml", "--engine", "ray"], "ray"),
]


@pytest.mark.parametrize("where", ["bare", "plain"])
def test_what_is_missing_names_itself(request, where):
    environment = request.getfixturevalue(where)
    (environment.work / "net.onnx").write_bytes(b"no model")
    (environment.work / "ray.toml").write_text('[grid]\nmodels = ["mlp"]\nruntimes = ["eager"]\n')
    asked = [(words, extra) for place, words, extra in MISSING if place == where]
    ran = environment.each([words for words, _ in asked])
    for (words, extra), (code, out, err, is_unchanged) in zip(asked, ran, strict=True):
        assert code == 2, (words, out, err)
        (line,) = err.splitlines()
        assert extra_of(line) == extra and line.count("install") < 3, line
        assert out == ""
        assert is_unchanged, words  # refused before anything is begun


def test_python_names_what_is_missing(plain):
    extras = ["pandas", "mlflow", "wandb"]
    code = (
        "import frameworktax as ft\n"
        "found = ft.explain('frameworktax-results')\n"
        f"for name in {extras}:\n"
        "    try: getattr(found, f'to_{name}')()\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    lines = plain("python", "-c", code).stdout.splitlines()
    assert [(line.split()[0], extra_of(line)) for line in lines] == [
        ("UsageError", extra) for extra in extras
    ]
