"""What is said beside a result is said to nobody, or dropped; it never ends or delays anything."""

import fcntl
import io
import os

from frameworktax.cli.deliver import Aside, into_nothing, writable


def pipe():
    read, write = os.pipe()
    return os.fdopen(read, "rb"), os.fdopen(write, "w")


def test_what_is_written_is_read():
    reader, writer = pipe()
    with reader, writer:
        assert Aside(writer).write("a line\n") == 7
        assert os.read(reader.fileno(), 100) == b"a line\n"


def test_a_reader_that_left_costs_nothing():
    reader, writer = pipe()
    reader.close()
    aside = Aside(writer)
    assert [aside.write("x\n"), aside.write("y\n")] == [2, 2]
    writer.close()  # what could not be written is not written later either


def test_a_full_pipe_is_not_waited_for():
    reader, writer = pipe()
    with reader, writer:
        size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        os.write(writer.fileno(), b"x" * size)
        assert not writable(writer.fileno())
        aside = Aside(writer)
        aside.write("dropped\n")
        os.read(reader.fileno(), size)
        aside.write("told\n")
        assert os.read(reader.fileno(), size) == b"told\n"


def test_a_stream_without_a_file_is_written():
    stream = io.StringIO()
    Aside(stream).write("x")
    assert stream.getvalue() == "x" and Aside(stream).isatty() is False


def test_a_closed_descriptor_is_not_writable():
    reader, writer = pipe()
    number = writer.fileno()
    reader.close()
    writer.close()
    assert not writable(number)


def test_into_nothing(tmp_path):
    with (tmp_path / "file").open("w") as file:
        into_nothing(file.fileno())
        file.write("lost")
    assert (tmp_path / "file").read_text() == ""
