"""A few mutated inputs at every run; ``make fuzz`` tries 2,000 and kills 30 sessions."""

import random
from importlib.util import find_spec

import fuzz_suite
from typer.main import get_command


def test_mutated_inputs_end_as_wrong_input_should(monkeypatch):
    monkeypatch.setattr(fuzz_suite, "SECONDS", 900)  # how long one takes is for `make fuzz`
    done, failed = fuzz_suite.inputs(first=7_000, count=12, until=lambda: False)
    assert (done, failed) == (12, [])


def test_no_command_ends_at_an_option_that_is_none_before_it_reads():
    for words in (*fuzz_suite.STORE, *fuzz_suite.EXPLAIN, *fuzz_suite.STUDY):
        command, rest = get_command(fuzz_suite.cli.app), list(words)
        while hasattr(command, "commands"):
            command = command.commands[rest.pop(0)]
        command.make_context(words[0], rest)  # raises for an option that is none


def test_a_mutation_depends_on_its_seed_alone():
    data = b'{"a": [1, {"b": 2}]}\n{"c": "text"}\n'
    first = [fuzz_suite.mutated(data, random.Random(seed)) for seed in range(50)]
    assert first == [fuzz_suite.mutated(data, random.Random(seed)) for seed in range(50)]
    assert len(set(first)) > 40


def test_what_the_suite_looks_for_is_found(tmp_path, monkeypatch):
    def failing(what):
        monkeypatch.setattr(fuzz_suite.cli, "main", what)
        return fuzz_suite.faults_of(["x"], tmp_path)

    def uses_memory():
        bytearray(fuzz_suite.MEMORY_BYTES + 1)

    assert failing(lambda: print("fine")) == ""
    assert failing(lambda: print("\x1b[31m")) == "drives the terminal"
    assert failing(lambda: 1 / 0).startswith("exit code 99")
    assert failing(uses_memory).startswith("exit code 99")
    canary = fuzz_suite.Path(fuzz_suite.CANARY)
    assert failing(canary.touch) == "code of the input was run"
    monkeypatch.setattr(fuzz_suite, "SECONDS", 1)
    assert failing(lambda: fuzz_suite.time.sleep(9)) == "longer than 1 s"


def test_every_module_that_is_imported_before_the_forks_is_there():
    assert [name for name in fuzz_suite.IMPORTED if find_spec(name) is None] == []
