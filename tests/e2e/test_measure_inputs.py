"""Ragged input and generating, from the command line to the document."""

import json

import pytest

QUICK = ("--batch", "2", "--processes", "1", "--until", "50%", "--time-budget", "900s")
QUICK += ("--twin", "none", "--by", "none")
DECODER = ("gpt2", "--width", "0.1", "--depth", "0.2", "--length", "8", "--phase", "generate")


def measured(command, *words):
    ran = command("measure", *words, *QUICK, "--json", "run.json")
    assert ran.code == 0, ran.err
    run = json.loads((command.folder / "run.json").read_text())
    return ran.out, {m["runtime"]: m for m in run["measurements"]}


def test_ragged_input_with_its_padding_tax(measuring):
    out, found = measured(
        measuring,
        "bert-tiny",
        "--length",
        "64",
        "--input",
        "ragged:10,4",
        "--runtimes",
        "eager,nested",
    )
    eager, nested = found["eager"], found["nested"]
    assert eager["padding_share"] == pytest.approx(1 - 10 / 64, abs=0.02)
    assert nested["padding_share"] == 0.0
    assert nested["parity"]["within_tolerance"] is True
    assert nested["latency_ns"] is not None
    assert (eager["workload"]["length_mean"], eager["workload"]["length_sd"]) == (10.0, 4.0)
    assert "Padding tax" in out
    assert "padding-not-compared" in {note["code"] for note in nested["notes"]}


def test_generating_with_times_of_tokens_and_runtimes_that_cannot(measuring):
    out, found = measured(
        measuring,
        *DECODER,
        *("--new-tokens", "4", "--runtimes", "eager,inference-mode,inductor,nested"),
    )
    for name in ("eager", "inference-mode"):
        m = found[name]
        assert m["status"] == "ok"
        assert 0 < m["first_token_ns"]["value"] < m["latency_ns"]["value"]
        assert 0 < m["per_token_ns"]["value"] < m["latency_ns"]["value"]
        assert "decoded-by" in {note["code"] for note in found[name]["notes"]}
    assert found["inference-mode"]["parity"]["within_tolerance"] is True
    assert found["inference-mode"]["parity"]["tolerance"] == 0.0
    for name, word in (("inductor", "static"), ("nested", "forward")):
        assert (found[name]["status"], found[name]["latency_ns"]) == ("unavailable", None)
        assert word in found[name]["reason"]
    assert "first token" in out and "each further" in out
