"""Every command's help has examples; all of them are commands that exist, the cheap ones run."""

import gzip
import re
import shlex
from pathlib import Path

import comparison_records as comparison
import pytest
import sample_records as data
from typer.main import get_command

from frameworktax import cli
from frameworktax.host import cache
from frameworktax.records import BY

DATA = Path(__file__).parents[1] / "data"
SLOW = {"attach", "measure", "sweep", "reproduce", "ablate", "optimize", "run"}
"""What measures, or needs a process to attach to."""


def leaves(command, name=""):
    """Yield (name, command) of every verb."""
    for word, one in getattr(command, "commands", {}).items():
        yield from leaves(one, f"{name} {word}".strip())
    if not hasattr(command, "commands"):
        yield name, command


VERBS = dict(leaves(get_command(cli.app)))


def examples(command):
    """Return the lines of a command's help that are commands."""
    return re.findall(r"^ *(frameworktax .+)$", command.help or "", re.MULTILINE)


EXAMPLES = [(name, line) for name, one in VERBS.items() for line in examples(one)]


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_an_example_of_itself(name):
    found = examples(VERBS[name])
    assert found, f"the help of {name} has no example"
    assert all(line.startswith(f"frameworktax {name}") for line in found)


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_every_example_is_a_command_with_real_options(name, line):
    words = shlex.split(line)[1 + len(name.split()) :]
    context = VERBS[name].make_context(name, words)  # raises for an option that is none
    assert not context.args


def test_the_help_of_by_has_every_value():
    (by,) = (option for option in VERBS["measure"].params if option.name == "by")
    assert {*BY, "auto", "none"} <= set(re.findall(r"\w+", by.help))


def test_an_option_that_is_none_is_found():
    with pytest.raises(cli.USAGE_ERROR):
        VERBS["measure"].make_context("measure", ["bert-base", "--no-such"])


CHEAP = [e for e in EXAMPLES if e[0] not in SLOW and "mlflow" not in e[1]]  # it may be missing


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the examples speak of: stores, a trace."""
    made = tmp_path_factory.mktemp("examples")
    for name in ("frameworktax-results", "results", "node-1", "node-2"):
        comparison.write(made / name, data.sample_records())
    comparison.write(made / "before", comparison.session())
    comparison.write(made / "after", comparison.session(comparison.NEW))
    trace = (DATA / "h100-bert-small-step.json").read_bytes()
    (made / "trace.json.gz").write_bytes(gzip.compress(trace))
    return made


@pytest.mark.parametrize(("name", "line"), CHEAP, ids=[line for _, line in CHEAP])
def test_a_cheap_example_runs(name, line, folder, monkeypatch, command):
    monkeypatch.chdir(folder)
    monkeypatch.setenv(cache.VARIABLE, str(folder / "cache"))
    code, out, err = command(*shlex.split(line)[1:])
    assert (code, err) == (0, "")
    assert out


def test_the_help_text_needs_no_options_of_a_verb():
    root = get_command(cli.app)
    text = root.get_help(root.make_context("frameworktax", ["--version"], resilient_parsing=True))
    verbs = [root.commands[name] for name in cli.VERBS]
    assert all(f"  {verb.name} " in text for verb in verbs)
    assert not any("params" in vars(verb) for verb in verbs)
    assert all(verb.params for verb in verbs)
