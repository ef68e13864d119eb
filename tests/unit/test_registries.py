"""The registries: names, suggestions, collisions, what is missing. No engine is imported."""

from __future__ import annotations

import itertools
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import tables
from frameworktax import models, runtimes
from frameworktax.errors import UsageError, WorkerError
from frameworktax.host import machine
from frameworktax.records import Workload
from frameworktax.runtimes import artifacts
from frameworktax.runtimes.base import Runtime, Target


def test_rows_of_a_family_stand_together(monkeypatch) -> None:
    monkeypatch.setitem(models.BUILT_IN, "last", models.Entry("m:build", "language", "a text"))
    rows = models.describe_names()
    assert {row["name"] for row in rows} == {*models.names(), *models.PREFIXES}
    families = [row["family"] for row in rows]
    assert len(set(families)) == len([f for f, _ in itertools.groupby(families)])


def test_a_name_that_is_no_utf_8_is_refused_before_it_is_a_key_that_none_reads() -> None:
    for name in ("f\udcff.py:build", "onnx:f\udcff.onnx"):
        with pytest.raises(UsageError, match="is not UTF-8; rename"):
            models.check(Workload(model=name))


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"'a/b\.onnx'.*'onnx:a/b\.onnx'\?"):
        models.check(Workload(model="a/b.onnx"))
    with pytest.raises(UsageError, match=r"'own\.py'.*'own\.py:function'\?"):
        models.check(Workload(model="own.py"))
    with pytest.raises(UsageError, match=r"model 'bert-bse'.*'bert-base'\?"):
        models.check(Workload(model="bert-bse"))
    with pytest.raises(UsageError, match=r"runtime 'eagr'.*'eager'\?"):
        runtimes.get("eagr")


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (Workload(model="resnet-18", length=8), r"resnet-18 .*--length"),
        (Workload(model="mlp", image_size=8), r"mlp .*--image-size"),
        (Workload(model="bert-base", image_size=8), r"bert-base .*--image-size"),
        (Workload(model="x.py:f", width=0.5), r"own model .*width"),
        (Workload(model="x.py:f", twin=True), r"twin"),
        (Workload(model="mlp", width=0.0), r"--width 0\.0"),
        (Workload(model="mlp", depth=-1.0), r"--depth -1\.0"),
        (Workload(model="mlp", depth=float("nan")), r"--depth nan"),
        (Workload(model="mlp", batch=0), r"batch 0\b"),
        (Workload(model="mlp", batch_dim=1), r"mlp .*batch dimension"),
        (Workload(model="bert-base", length=513), r"\b1 to 512\b.*\b513\b"),
        (Workload(model="mamba", length=0), r"mamba .*\b1 or more\b.*\b0\b"),
        (Workload(model="resnet-18", image_size=31), r"\b32\b.*\b31\b"),
        (Workload(model="bert-base", phase="generate"), r"bert-base .*no text"),
        (Workload(model="resnet-18", phase="generate"), r"--phase generate"),
        (Workload(model="resnet-18", input="ragged"), r"leave out --input"),
        (Workload(model="bert-base", channels_last=True), r"--channels-last"),
        (Workload(model="torchvision:resnet18", width=0.5), r"width"),
        (Workload(model="torchvision:resnet18", length=3), r"length"),
        (Workload(model="hf:bert", depth=2.0), r"hf:bert .*depth"),
        (Workload(model="onnx:absent.onnx"), r"no file absent\.onnx"),
        (Workload(model="onnx:absent.onnx", phase="generate"), r"no text"),
    ],
)
def test_impossible_workloads_are_one_line(workload: Workload, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        models.check(workload)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("registry", [models, runtimes])
def test_entry_points_add_names_and_may_not_collide(registry, monkeypatch) -> None:
    taken = registry.names()[0]
    points = [EntryPoint("mine", "package.module:thing", registry.GROUP)]
    monkeypatch.setattr(models, "entry_points", lambda group: points)
    assert registry.names()[-1] == "mine"
    points.append(EntryPoint(taken, "package.module:other", registry.GROUP))
    with pytest.raises(UsageError, match=rf"'{taken}' .*twice.*package\.module:other"):
        registry.names()


def test_a_plugin_that_is_no_runtime_is_told(monkeypatch) -> None:
    points = [EntryPoint("odd", "collections:OrderedDict", runtimes.GROUP)]
    monkeypatch.setattr(models, "entry_points", lambda group: points)
    with pytest.raises(UsageError, match=r"'odd' .* is no Runtime"):
        runtimes.get("odd")


@pytest.mark.parametrize("name", runtimes.BUILT_IN)
def test_contract_of_every_runtime(name: str) -> None:
    runtime = runtimes.get(name)
    assert isinstance(runtime, Runtime)
    assert runtime.name == name
    assert runtime.paradigm in (
        "eager", "deferred", "ahead-of-time", "graph-replay", "sparse-input", "floor",
    )  # fmt: skip
    assert "float32" in runtime.precisions
    if not runtime.needs_model and name not in ("null", "deployed"):
        assert runtime.prepares, "load gets no model, so prepare must leave one"
        assert type(runtime).prepare is not Runtime.prepare


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_cpu_engines_refuse_cuda(name: str) -> None:
    missing = runtimes.get(name).missing(Target(device="cuda:0"))
    assert missing is not None
    assert "choose --device cpu" in missing or "not installed" in missing


def test_missing_compiler_says_what_to_install(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    lacking = ("no C++ compiler", "install g++ (apt install g++) or set CXX")
    for found in ({}, {"c++": "/usr/bin/c++"}):  # Inductor's are others
        monkeypatch.setattr(machine.shutil, "which", found.get)
        assert machine.missing_compiler() == lacking
    monkeypatch.setattr(machine.shutil, "which", {"clang++": "/usr/bin/clang++"}.get)
    assert machine.compiler() == "clang++"
    monkeypatch.setattr(machine.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setenv("CXX", "my-compiler")
    assert machine.compiler() == "my-compiler"
    monkeypatch.setattr(machine.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    headers = ("no Python headers", "install them (apt install python3-dev)")
    assert machine.missing_compiler() == headers
    (tmp_path / "Python.h").touch()
    assert machine.missing_compiler() is None


def test_artifact_is_whole_or_not_there(tmp_path) -> None:

    def made(folder: Path) -> artifacts.Artifact:
        return artifacts.Artifact(
            folder=folder, files={1: "a", 3: "b"}, names=["x"], dtypes=["float32"],
            notes=[("c", "t")],
        )  # fmt: skip

    with pytest.raises(KeyboardInterrupt), artifacts.staged(tmp_path) as folder:
        made(folder).write()
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WorkerError, match="nothing prepared"):
        artifacts.Artifact.read(tmp_path)
    for _ in range(2):  # a second one replaces the first
        with artifacts.staged(tmp_path) as folder:
            made(folder).write()
    read = artifacts.Artifact.read(tmp_path)
    assert read == made(tmp_path / "artifact")
    assert read.file(3) == tmp_path / "artifact" / "b"
    with pytest.raises(WorkerError, match="batch 2 was not prepared"):
        read.file(2)
    assert [entry.name for entry in tmp_path.iterdir()] == ["artifact"]


def test_all_leaves_out_what_takes_minutes_and_what_has_nothing_to_leave_out():
    dense, ragged = runtimes.every(), runtimes.every("ragged")
    assert "inductor-max-autotune" not in ragged and "eager" in dense
    assert set(ragged) - set(dense) == {"nested"}


def test_the_documentation_has_the_tables_of_the_registries():
    """``make tables`` writes them."""
    for page, table in (("runtimes", tables.runtimes_table()), ("models", tables.models_table())):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert tables.replaced(text, table) == text


def test_a_row_of_the_table_follows_from_the_class():
    tested = {"iree-base-compiler": "3.1", "onnx": "1.2", "torch": "9"}
    assert tables.row_of(runtimes.get("iree"), tested) == [
        "`iree`", "ahead-of-time", "cpu", "f32", "`frameworktax[iree]`",
        "iree-base-compiler 3.1, onnx 1.2", "–",
    ]  # fmt: skip
