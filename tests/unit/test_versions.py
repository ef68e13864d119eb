"""The version of every engine is recorded, and after an upgrade nothing stale is used again."""

from pathlib import Path

import pytest

from frameworktax import host, models, runtimes
from frameworktax.measure.plan import Plan
from frameworktax.measure.series import series_of
from frameworktax.records import Point, Workload

ENGINES = [
    ("iree", "iree-base-compiler"),
    ("iree", "iree-base-runtime"),
    ("executorch", "executorch"),
    ("litert", "litert-torch"),
    ("litert", "ai-edge-litert"),
    ("tract", "tract"),
    ("zentorch", "zentorch"),
    ("jax", "jaxlib"),
    ("jax", "torchax"),
]


def install(folder: Path, package: str, version: str) -> str:
    """Write the metadata that installing a package leaves; return the folder to search."""
    where = folder / version
    metadata = where / f"{package.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    )
    return str(where)


@pytest.mark.parametrize(("runtime", "package"), ENGINES)
def test_an_upgrade_is_recorded_and_is_another_artifact(runtime, package, tmp_path, monkeypatch):
    point = Point(workload=Workload(model="mlp"), runtime=runtime)
    folders, recorded = set(), []
    for version in ("1.0", "2.0"):
        with monkeypatch.context() as patch:
            patch.syspath_prepend(install(tmp_path, package, version))
            plan = Plan(points=(), folder=tmp_path / "cache")
            (series,) = series_of([point], plan, tmp_path / "scratch")
            folders.add(series.folder)
            found = host.environment(packages=runtimes.distributions())
            recorded.append(found.libraries[package])
    assert len(folders) == 2
    assert recorded == ["1.0", "2.0"]


def test_what_a_class_names_is_listed():
    listed = set(runtimes.distributions())
    for name in runtimes.BUILT_IN:
        assert runtimes.get(name).distributions() <= listed
    for entry in models.BUILT_IN.values():
        assert set(entry.packages) <= listed


def test_a_package_that_registers_a_runtime_is_listed(tmp_path, monkeypatch):
    where = Path(install(tmp_path, "my-plugin", "3.1"))
    (metadata,) = where.iterdir()
    (metadata / "entry_points.txt").write_text(f"[{runtimes.GROUP}]\nmine = not_there:Mine\n")
    monkeypatch.syspath_prepend(str(where))
    assert host.libraries(runtimes.distributions())["my-plugin"] == "3.1"
