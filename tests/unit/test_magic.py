"""``%%tax`` in IPython's own shell."""

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from frameworktax import block


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    shell.run_line_magic("load_ext", "frameworktax")
    yield shell
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()
    block.NAMED.clear()


def run(shell, text):
    with capture_output() as shown:
        result = shell.run_cell(text, store_history=False)
    return result, [out.data for out in shown.outputs]


def test_a_cell_is_measured_and_keeps_its_value_and_names(shell):
    result, shown = run(shell, "%%tax sum\nx = 20\nsum(range(x))")
    assert result.result == 190
    assert shell.user_ns["x"] == 20
    assert len(shown) == 1
    assert shown[0]["text/plain"].startswith("sum: 1 run, ")
    page = shown[0]["text/html"]
    assert page.count('<th scope="row">sum</th>') == 1
    assert "<script" not in page
    assert "http" not in page


def test_the_breakdown_is_drawn_in_the_cell(shell):
    _, shown = run(shell, "%%tax\nsum(i & 7 for i in range(3_000_000));")
    assert len(shown) == 1  # the semicolon silences the value
    if "tax unavailable" not in shown[0]["text/plain"]:
        assert '<span class="bar" role="img"' in shown[0]["text/html"]


def test_an_exception_is_raised_after_what_was_measured_is_shown(shell):
    result, shown = run(shell, "%%tax\nx = 1\n1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert shown[0]["text/plain"].startswith("cell: 1 run, ")


def test_blocks_named_in_a_cell_are_shown_and_merged_by_name(shell):
    loop = "import frameworktax as ft\nfor _ in range(5):\n    with ft.tax('step'):\n        pass"
    for _ in range(2):  # every cell begins anew
        _, shown = run(shell, f"%%tax loop\n{loop}")
        assert [data["text/plain"].split(",")[0] for data in shown] == [
            "loop: 1 run",
            "step: 5 runs",
        ]


def test_the_extension_is_loaded_again(shell):
    for again in ("load_ext", "reload_ext"):
        result, _ = run(shell, f"%{again} frameworktax")
        assert result.success
    result, shown = run(shell, "%%tax\n1 + 2")
    assert result.result == 3 and len(shown) == 1


def test_a_cell_that_is_no_python_is_ipythons_error(shell):
    result, shown = run(shell, "%%tax\nx =")
    assert isinstance(result.error_in_exec, SyntaxError)
    assert shown == []


def test_a_cell_that_awaits_is_refused_in_a_line(shell, capsys):
    result = shell.run_cell("%%tax\nimport asyncio\nawait asyncio.sleep(0)", store_history=False)
    assert isinstance(result.error_in_exec, UsageError)
    out, err = capsys.readouterr()
    assert err.count("\n") == 1 and "ft.tax" in err and not out
