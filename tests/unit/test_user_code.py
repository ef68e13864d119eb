"""The user's own code beside the engines: whose module a name means."""

import json
import sys
from pathlib import Path

import pytest

from frameworktax.errors import UserModelError
from frameworktax.measure.worker import _user_line
from frameworktax.models import user
from frameworktax.models.libraries import begun
from frameworktax.records import Workload


def test_a_package_in_the_current_folder_stands_for_no_engine(tmp_path, monkeypatch):
    (tmp_path / "own_package.py").write_text("def build():\n    return 7\n")
    (tmp_path / "email.py").write_text("raise SystemExit('a local file was imported')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_package", raising=False)
    before = list(sys.path)
    assert user._function("own_package:build")() == 7
    assert sys.path == [*before, str(tmp_path)]
    monkeypatch.delitem(sys.modules, "email")
    with pytest.raises(UserModelError, match="has no function 'build'"):
        user._function("email:build")


def test_a_file_that_ends_the_program_is_named_with_its_line(tmp_path):
    workload = Workload(model="", batch=1)
    own = tmp_path / "script.py"
    own.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(UserModelError, match=r"SystemExit: 3 \(.*script.py:2\)"):
        user.build(f"{own}:build", workload)
    own.write_text("import sys\ndef build():\n    sys.exit(3)\n")
    with pytest.raises(UserModelError, match=r"SystemExit: 3 \(.*script.py:3\)"):
        user.build(f"{own}:build", workload)


def test_an_error_names_the_users_own_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))  # as /usr/src/app with Debian's Python
    own = tmp_path / "own.py"
    own.write_text("import json\n\ndef forward():\n    json.loads('no')\n")
    forward = user._function(f"{own}:forward")
    with pytest.raises(ValueError, match="Expecting value") as caught:
        forward()
    assert _user_line(caught.value) == f" ({own}:4)"
    installed = tmp_path / "lib/python3/dist-packages/own.py"
    installed.parent.mkdir(parents=True)
    installed.write_text(own.read_text())
    with pytest.raises(ValueError, match="Expecting value") as caught:
        user._function(f"{installed}:forward")()
    caught.value.__traceback__ = caught.value.__traceback__.tb_next
    assert _user_line(caught.value) == ""
    with pytest.raises(ValueError, match="Expecting value") as caught:
        json.loads("no")
    caught.value.__traceback__ = caught.value.__traceback__.tb_next
    assert _user_line(caught.value) == ""


def test_a_thread_that_ends_as_it_is_counted_ends_no_model(monkeypatch):
    def ended(path):
        raise ProcessLookupError

    monkeypatch.setattr(Path, "read_text", ended)
    threads, processes = begun()
    assert threads >= 1 and processes == 0
