"""`frameworktax list` and `frameworktax env`, as a user calls them."""

import pytest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("env", "create", "executorc"), "no environment 'executorc', did you mean 'executorch'?"),
        (("env", "remove", "nothing"), "no environment 'nothing' (see 'frameworktax env list')"),
        (
            ("measure", "mlp", "--runtimes", "onnxruntime@9"),
            "onnxruntime has no option '9'; choose onnxruntime@0, onnxruntime@1",
        ),
        (
            ("measure", "mlp", "--runtimes", "eager@9"),
            "eager has no option '9'; choose eager@autograd, eager@unfused",
        ),
    ],
)
def test_wrong_names_are_one_line(here, words, said):
    ran = here(*words)
    assert ran.code == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_environments_are_listed_and_the_command_that_makes_one_is_named(here, tmp_path):
    folder = {"FRAMEWORKTAX_ENVIRONMENTS": str(tmp_path)}
    rows = here("env", "list", "--json", **folder).json()
    assert {"jax", "executorch", "litert", "iree"} <= {row["name"] for row in rows}
    assert not any(row["ready"] for row in rows)
    runtimes = here("list", "runtimes", "--json", **folder).json()
    (litert,) = [row for row in runtimes if row["name"] == "litert"]
    if not litert["available"]:
        assert litert["reason"].endswith("not installed; frameworktax env create litert")
    assert litert["environment"] == "litert"
