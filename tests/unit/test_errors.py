"""Foreign errors in one line: their cause is not lost, their colours are."""

from pathlib import Path

import pytest

from frameworktax.errors import UsageError, one_line, write_text


def chained(*texts: str) -> BaseException:
    error = None
    for text in texts:
        made = ValueError(text) if error is None else RuntimeError(text)
        made.__cause__ = error
        error = made
    return error


def test_the_first_cause_is_told_with_the_last_error() -> None:
    last = "\x1b[96mThis is step 3/3\x1b[0m of\nexporting. " + "x" * 300
    text = one_line(chained("no function\n for op", "conversion", last))
    assert text.startswith("RuntimeError: This is step 3/3 of exporting. xxx")
    assert text.endswith("x; because ValueError: no function for op")
    assert "conversion" not in text and len(text) < 400 and text.isprintable()


def test_an_error_that_is_its_own_cause_is_told_once() -> None:
    error = ValueError("x")
    error.__cause__ = error  # as ``raise error from error`` makes it
    assert one_line(error) == "ValueError: x"


def test_an_error_by_itself_is_told_up_to_a_length() -> None:
    assert one_line(ValueError("a\n\tb")) == "ValueError: a b"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(ValueError("y" * 1000))) == len("ValueError: ") + 400


def test_a_text_that_cannot_be_written_whole_leaves_nothing(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("before")
    with pytest.raises(UsageError, match="cannot write"):
        write_text(kept / "below", "text")
    assert kept.read_text() == "before"
    device = Path("/dev/full")
    with pytest.raises(UsageError, match="No space left"):
        write_text(device, "text")
    assert device.exists()


def test_what_is_no_utf_8_is_written_as_a_question_mark(tmp_path):
    write_text(tmp_path / "page", "run f\udcff.py ü")
    assert (tmp_path / "page").read_text(encoding="utf-8") == "run f?.py ü"
