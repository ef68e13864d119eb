import pytest
from test_where import stack

from frameworktax.errors import UsageError
from frameworktax.records import Measurement, Run, Workload
from frameworktax.report import export
from frameworktax.report.stacks import collapsed


def run(**fields):
    m = Measurement(
        workload=Workload(model="m"), runtime="eager", paradigm="eager", platform="cpu",
        threads=1, status="ok", **fields,
    )  # fmt: skip
    return Run(measurements=(m,))


def test_every_layer_is_a_stack_and_all_are_the_call():
    lines = collapsed(run(layers=tuple(stack()))).splitlines()
    assert (
        "m, eager, batch 1;Net net.py:7;layers.0 Block net.py:7;a Linear net.py:7;kernel 50"
        in lines
    )
    assert "m, eager, batch 1;outside the model;python 5" in lines
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == 10 + 6 * (20 + 80 + 90) + 5


def test_without_layers_symbols_are_the_stacks():
    lines = collapsed(
        run(
            bill_ns={"kernel": 60.0, "wait": -3.0},
            symbols_ns=(
                ("kernel", "libmkl.so", "sgemm;x", 40.0),
                ("no-such-line", "libc.so", "f", 9.0),
            ),
        )
    ).splitlines()
    # waiting below zero has no width
    assert lines == ["m, eager, batch 1;kernel;libmkl.so;sgemm:x 40", "m, eager, batch 1;kernel 20"]


def test_the_name_of_the_file_says_the_format(tmp_path):
    some = run(layers=tuple(stack()))
    export.write(some, tmp_path / "a.collapsed")
    assert (tmp_path / "a.collapsed").read_text() == collapsed(some)
    with pytest.raises(UsageError, match="no point has a breakdown"):
        export.write(run(), tmp_path / "b.collapsed")
