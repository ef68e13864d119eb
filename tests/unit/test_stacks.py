import json

import pytest
from test_where import stack

from frameworktax.errors import UsageError
from frameworktax.records import Measurement, Run, Workload
from frameworktax.report import export
from frameworktax.report.stacks import collapsed, speedscope


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


def test_speedscope_gets_the_same_stacks_by_number():
    both = run(layers=tuple(stack()))
    found = json.loads(speedscope(both))
    names = [frame["name"] for frame in found["shared"]["frames"]]
    (profile,) = found["profiles"]
    assert (profile["type"], profile["unit"]) == ("sampled", "nanoseconds")
    lines = [
        f"{';'.join([profile['name'], *(names[at] for at in sample)])} {round(weight)}\n"
        for sample, weight in zip(profile["samples"], profile["weights"], strict=True)
    ]
    assert "".join(lines) == collapsed(both)
    assert len(set(names)) == len(names)
    assert profile["endValue"] == sum(profile["weights"]) == 1155.0


def test_the_name_of_the_file_says_the_format(tmp_path):
    some = run(layers=tuple(stack()))
    export.write(some, tmp_path / "a.collapsed")
    assert (tmp_path / "a.collapsed").read_text() == collapsed(some)
    export.write(some, tmp_path / "a.speedscope")
    assert (tmp_path / "a.speedscope").read_text() == speedscope(some)
    for name in ("b.collapsed", "b.speedscope"):
        with pytest.raises(UsageError, match="breakdown"):
            export.write(run(), tmp_path / name)
