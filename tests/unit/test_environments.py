"""Environments of their own: names, places, what is finished, what the rest of the project says."""

import re
import tomllib
from pathlib import Path

import pytest

from frameworktax import runtimes
from frameworktax.errors import UsageError, WorkerError
from frameworktax.runtimes import environments
from frameworktax.runtimes.base import Target

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(environments.FOLDER_VARIABLE, str(tmp_path / "apart"))
    return tmp_path / "apart"


def test_without_a_word_environments_stand_beside_the_interpreter(monkeypatch, tmp_path):
    monkeypatch.delenv(environments.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(environments.sys, "prefix", str(tmp_path))
    assert environments.base() == tmp_path / "frameworktax-environments"
    monkeypatch.setattr(environments.sys, "base_prefix", str(tmp_path))  # the system's Python
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert environments.base().parent == Path("/somewhere/frameworktax")


def test_an_unfinished_environment_is_none(folder):
    python = folder / "jax" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert environments.python_of("jax") is None
    (folder / "jax" / environments.MARKER).write_text('{"versions": {"jax": "1"}}')
    assert environments.python_of("jax") == python
    assert environments.installed("jax") == {"jax": "1"}
    assert [row["name"] for row in environments.found(runtimes.recipes()) if row["ready"]] == [
        "jax"
    ]
    python.parent.chmod(0o777)
    assert environments.python_of("jax") is None  # another could have put the interpreter there
    assert environments.remove("jax")
    assert not environments.remove("jax")
    assert environments.python_of("jax") is None


def test_unknown_environments_get_a_suggestion():
    with pytest.raises(UsageError, match=r"'jaxx', did you mean 'jax'"):
        runtimes.recipe("jaxx")


def test_what_pip_cannot_install_is_one_line_and_leaves_nothing_ready(folder, monkeypatch):
    recipe = environments.Recipe(("no-such-package-at-all==0",), 1)
    monkeypatch.setattr(environments.venv, "create", fake_venv)
    with pytest.raises(WorkerError, match="no-such-package-at-all==0: ERROR") as caught:
        environments.create("broken", recipe, lambda text: None)
    assert caught.value.status == "failed"
    assert environments.python_of("broken") is None


def fake_venv(folder, with_pip, symlinks):
    (folder / "lib" / "python3" / "site-packages").mkdir(parents=True)
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.write_text("#!/bin/sh\necho 'working'\necho 'ERROR: none found'\nexit 1\n")
    python.chmod(0o755)


def test_a_folder_that_cannot_be_written_names_the_remedy(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv(environments.FOLDER_VARIABLE, str(tmp_path / "file" / "below"))
    with pytest.raises(UsageError, match=f"set {environments.FOLDER_VARIABLE} to another"):
        environments.create("jax", runtimes.recipe("jax"), lambda text: None)


@pytest.mark.parametrize("name", [n for n in runtimes.BUILT_IN if runtimes.get(n).environment])
def test_a_runtime_that_can_live_apart_says_how(name, folder, monkeypatch):
    runtime = runtimes.get(name)
    monkeypatch.setattr(type(runtime), "packages", ("no_such_package",))
    reason = runtime.missing(Target())
    assert reason == (
        f"no_such_package not installed; frameworktax env create {runtime.environment}"
    )
    python = folder / runtime.environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (folder / runtime.environment / environments.MARKER).write_text("{}")
    assert runtime.python() == python
    assert "not installed" not in (runtime.missing(Target()) or "")
    assert runtimes.recipe(runtime.environment) == runtime.recipe


def test_recipes_install_what_the_constraints_and_extras_name():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for name, recipe in runtimes.recipes().items():
        extra = [re.split(r"[=>]", requirement)[0] for requirement in extras[name]]
        for package in recipe.packages:
            assert package in lines
            assert package.partition("==")[0] in extra
