"""The version of every engine is recorded, and after an upgrade nothing stale is used again."""

import re
import tomllib
from pathlib import Path

import pytest

from frameworktax import host, models, runtimes
from frameworktax.host.inventory import EXTRAS
from frameworktax.measure.plan import Plan
from frameworktax.measure.series import series_of
from frameworktax.records import Point, Workload

ROOT = Path(__file__).parents[2]
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


def installed_by(extra: str) -> set[str]:
    """Return the distributions that an extra names in ``pyproject.toml``."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return {re.match(r"[\w-]+", one)[0].lower() for one in asked[extra]}


def lacks(extra: str, packages: tuple[str, ...]) -> list[str]:
    """Return the importable packages that an extra does not install."""
    found = installed_by(extra)
    names = {package: package.partition(".")[0].replace("_", "-") for package in packages}
    return [
        package
        for package, name in names.items()
        if name not in found and not any(one.startswith(f"{name}-") for one in found)
    ]


@pytest.mark.parametrize("name", [name for name in runtimes.BUILT_IN if runtimes.get(name).extra])
def test_an_extra_is_all_that_a_runtime_asks_for_and_each_version_of_it_is_recorded(name):
    runtime = runtimes.get(name)
    assert lacks(runtime.extra, runtime.packages) == []
    assert installed_by(runtime.extra) <= runtime.distributions()


def test_an_extra_is_all_that_a_model_asks_for():
    for name, entry in (models.BUILT_IN | models.PREFIXES).items():
        assert lacks(entry.extra, entry.packages) == [], name


def test_what_doctor_misses_is_installed_by_the_extra_that_it_names():
    for package, extra in EXTRAS.items():
        assert package in installed_by(extra)


def test_a_package_that_registers_a_runtime_is_listed(tmp_path, monkeypatch):
    where = Path(install(tmp_path, "my-plugin", "3.1"))
    (metadata,) = where.iterdir()
    (metadata / "entry_points.txt").write_text(f"[{runtimes.GROUP}]\nmine = not_there:Mine\n")
    monkeypatch.syspath_prepend(str(where))
    assert host.libraries(runtimes.distributions())["my-plugin"] == "3.1"
