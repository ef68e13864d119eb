"""Ragged input, nested tensors, greedy decoding, memory format: real libraries, tiny models."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from frameworktax import models, runtimes
from frameworktax.errors import UsageError, WorkerError
from frameworktax.measure import parity
from frameworktax.measure.worker import Server
from frameworktax.models import ragged
from frameworktax.models.base import Decoding, Inputs, Model
from frameworktax.models.describe import describe, describe_batches
from frameworktax.models.generate import Greedy, Loop
from frameworktax.records import Workload
from frameworktax.runtimes.base import Target

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

RAGGED = {"length": 24, "input": "ragged", "length_mean": 9.0, "length_sd": 4.0}
TINY = {"width": 0.1, "depth": 0.2}
PROMPT, NEW = 6, 5


def loaded(name, model, target=None):
    return runtimes.get(name).load(model, target or Target(), Path())


# --- ragged ---------------------------------------------------------------------------------------


def test_ragged_input_is_the_dense_one_cut_and_padded():
    dense = models.build(Workload(model="bert-tiny", length=24))
    cutting = models.build(Workload(model="bert-tiny", **RAGGED))
    whole, cut = dense.inputs(8).kwargs, cutting.inputs(8).kwargs
    real = torch.from_numpy(cutting.real(8))
    assert torch.equal(cut["attention_mask"].bool(), real)
    assert cut["attention_mask"].dtype == whole["attention_mask"].dtype
    same = cut["input_ids"] == whole["input_ids"]
    assert same[real & (whole["input_ids"] != 0)].all()
    assert (cut["input_ids"][~real] == 0).all() and (cut["input_ids"][real] != 0).all()
    assert real.sum(1).float().mean() == pytest.approx(9.0, abs=0.5)
    again = models.build(Workload(model="bert-tiny", **RAGGED)).inputs(8).kwargs
    assert torch.equal(cut["input_ids"], again["input_ids"])


def test_padding_of_roberta_is_its_own_token():
    model = models.build(Workload(model="roberta", **TINY, **RAGGED))
    ids, real = model.inputs(4).kwargs["input_ids"], torch.from_numpy(model.real(4))
    assert (ids[~real] == 1).all() and (ids[real] != 1).all()


def test_no_token_of_a_sentence_is_the_padding_token():
    """Ids are drawn from the whole vocabulary; a model may number positions by what is padding."""
    kwargs = {
        "input_ids": torch.zeros(1, 8, dtype=torch.int64),
        "attention_mask": torch.ones(1, 8, dtype=torch.int64),
    }
    model = ragged.apply(Model(torch.nn.Identity(), lambda batch: Inputs((), kwargs), {}), 4.0, 2.0)
    ids, real = model.inputs(1).kwargs["input_ids"], torch.from_numpy(model.real(1))
    assert (ids[real] == 1).all() and (ids[~real] == 0).all()


@pytest.mark.parametrize(("padding", "expected"), [(None, 0), (-1, 0), (6, 6)])
def test_every_id_is_in_the_vocabulary_wherever_padding_is(padding, expected):
    """GPT-2's folders often pad with the last id, 50256; -1 stands for no padding."""
    ids = torch.arange(7).flip(0).expand(1, 7)
    kwargs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    module = torch.nn.Identity()
    module.config = SimpleNamespace(pad_token_id=padding)
    model = ragged.apply(Model(module, lambda batch: Inputs((), kwargs), {}), 5.0, 1.5)
    found, real = model.inputs(1).kwargs["input_ids"], torch.from_numpy(model.real(1))
    assert found.min() >= 0 and found.max() <= 6
    assert (found[~real] == expected).all() and (found[real] != expected).all()


def test_a_twin_keeps_the_share_of_padding():
    whole = models.build(Workload(model="bert-tiny", **RAGGED))
    twin = models.build(Workload(model="bert-tiny", twin=True, **RAGGED))
    shares = [describe(m, 8)["padding_share"] for m in (whole, twin)]
    assert twin.real(8).shape[1] < whole.real(8).shape[1]
    assert shares[0] == pytest.approx(1 - 9 / 24, abs=0.03)
    assert shares[1] == pytest.approx(shares[0], abs=0.1)


def test_the_share_of_padding_is_told_where_counting_was_given_up():
    model = models.build(Workload(model="bert-tiny", **RAGGED))
    facts = describe_batches(model, [1, 2, 4], limit_s=0.0)
    assert facts[4]["padding_share"] == 1 - model.real(4).mean()
    assert describe(models.build(Workload(model="bert-tiny", length=8)), 1)["padding_share"] is None


def test_counts_that_are_on_no_line_are_not_scaled(monkeypatch):
    seconds = iter(range(3))
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))

    def counted(model, batch):
        facts = {"parameters": 7, "flops": 10 * batch, "macs": batch**2, "operators": None}
        return {**facts, "padding_share": None, "notes": []}

    monkeypatch.setattr("frameworktax.models.describe.describe", counted)
    found = describe_batches(Model(torch.nn.Identity(), Inputs, {}), [5, 1, 2, 3], limit_s=1.5)
    scaled = found.pop(5)
    assert [code for code, _ in scaled.pop("notes")] == ["counts-scaled"]
    assert (scaled["parameters"], scaled["flops"], scaled["macs"]) == (7, 50, None)
    assert [facts["macs"] for facts in found.values()] == [1, 4, 9]


@pytest.mark.parametrize("form", ["positional", "no-mask", "other-shape"])
def test_a_model_without_a_mask_takes_no_ragged_input(form, tmp_path):
    given = {
        "positional": "(torch.ones(2, 8),)",
        "no-mask": "{'input_ids': torch.ones(2, 8, dtype=torch.int64)}",
        "other-shape": "{'input_ids': torch.ones(2, 8, dtype=torch.int64), "
        "'attention_mask': torch.ones(2, 1, 8)}",
    }
    file = tmp_path / "own.py"
    file.write_text(f"import torch\ndef build(): return torch.nn.Identity(), {given[form]}\n")
    with pytest.raises(UsageError, match="leave out --input"):
        models.build(Workload(model=f"{file}:build", input="ragged"))


# --- nested ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("bert-tiny", {}),
        ("roberta", TINY),
        ("bert-tiny", {"twin": True}),
    ],
)
def test_nested_equals_eager_at_real_tokens_and_only_there(name, factors):
    model = models.build(Workload(model=name, **factors, **RAGGED))
    found = {}
    for runtime in ("eager", "nested"):
        made = loaded(runtime, model)
        found[runtime] = made.outputs(made.bind(4)())
    real = model.real(4)
    equal = parity.compare(
        parity.without_padding(found["eager"], real),
        parity.without_padding(found["nested"], real),
        "float32",
    )
    assert equal.within_tolerance is True and equal.max_relative_difference < 1e-5
    assert len(found["nested"]) == len(found["eager"])
    assert not found["nested"][0][~real].any()  # nothing was computed there
    assert parity.compare(found["eager"], found["nested"], "float32").within_tolerance is False


@pytest.mark.parametrize(("name", "says"), [("gpt2", "not of gpt2"), ("albert", "not of albert")])
def test_nested_says_what_it_does_not_compute(name, says):
    model = models.build(Workload(model=name, **TINY, **RAGGED))
    with pytest.raises(WorkerError, match=says) as raised:
        loaded("nested", model)
    assert raised.value.status == "unavailable"


def test_nested_refuses_another_activation():
    model = models.build(Workload(model="bert-tiny", **RAGGED))
    model.module.config.hidden_act = "relu"
    with pytest.raises(WorkerError, match="relu"):
        loaded("nested", model)


def test_a_worker_hands_on_that_a_runtime_is_unavailable(tmp_path):
    workload = Workload(model="gpt2", **TINY, **RAGGED)
    given = {"workload": workload, "runtime": "nested", "target": Target()}
    written = io.BytesIO()
    Server().answer("load", {**given, "folder": str(tmp_path)}, written)
    assert json.loads(written.getvalue())["failure"]["status"] == "unavailable"


# --- generating -----------------------------------------------------------------------------------


def decoder(kv_cache="dynamic", new_tokens=NEW, **fields):
    return models.build(
        Workload(
            model="gpt2",
            length=PROMPT,
            phase="generate",
            new_tokens=new_tokens,
            kv_cache=kv_cache,
            **(TINY | fields),
        )
    )


def by_hand(model, batch):
    """The most likely token appended, again and again, without any cache."""
    ids = model.inputs(batch).kwargs["input_ids"]
    with torch.no_grad():
        for _ in range(NEW):
            ids = torch.cat([ids, model.module(input_ids=ids).logits[:, -1:].argmax(-1)], 1)
    return ids.numpy()


@pytest.mark.parametrize(
    ("runtime", "kv_cache"),
    [("eager", "none"), ("eager", "dynamic"), ("eager", "static"), ("inference-mode", "static")],
)
def test_generated_tokens_are_those_found_by_hand(runtime, kv_cache):
    model = decoder(kv_cache)
    made = loaded(runtime, model)
    call = made.bind(2)
    for _ in range(2):  # a second call starts anew
        (tokens,) = made.outputs(call())
        assert np.array_equal(tokens, by_hand(model, 2))
    assert tokens.dtype == np.int64


def test_a_loop_over_the_step_makes_the_same_tokens():
    model = decoder("static")
    loop = Loop(model.module, model.decoding, model.module)
    ids = model.inputs(2).kwargs["input_ids"]
    with torch.no_grad():
        for _ in range(2):
            assert np.array_equal(loop(ids).numpy(), by_hand(model, 2))


def test_the_first_token_comes_within_the_call_after_the_prompt():
    import time

    model = decoder("dynamic")
    for run in (
        Greedy(model.module, model.decoding),
        Loop(model.module, model.decoding, model.module),
    ):
        ids = model.inputs(1).kwargs["input_ids"]
        with torch.no_grad():
            run(ids)
            before = run.first_token_ns
            start = time.perf_counter_ns()
            run(ids)
            end = time.perf_counter_ns()
        assert before < start < run.first_token_ns < end


def test_the_hook_counts_the_prompt_out():
    seen = []

    class Counting(Greedy):
        def put(self, tokens):
            seen.append(tuple(tokens.shape))
            super().put(tokens)

    model = decoder()
    with torch.no_grad():
        Counting(model.module, model.decoding)(model.inputs(2).kwargs["input_ids"])
    assert seen == [(2, PROMPT)] + [(2,)] * NEW


def test_the_first_token_is_the_second_thing_handed_over(monkeypatch):
    """In a call that follows one which failed, too."""
    now = iter([11, 22, 33])
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(now))

    class Handing(torch.nn.Module):
        def generate(self, ids, streamer, **_):
            before = streamer.first_token_ns
            streamer.put(ids)
            assert streamer.first_token_ns == before
            if not ids.numel():
                raise MemoryError
            streamer.put("first")
            streamer.put("second")
            streamer.end()

    decode = Greedy(Handing(), Decoding(new_tokens=2, kv_cache="none"))
    for expected in (11, 22):
        decode(torch.ones(1, 3))
        assert decode.first_token_ns == expected
        with pytest.raises(MemoryError):
            decode(torch.ones(1, 0))


def test_an_end_token_ends_nothing():
    """Every call makes the number of tokens asked for, whatever the model says."""
    model = decoder()
    model.module.generation_config.eos_token_id = int(by_hand(model, 1)[0, PROMPT])
    made = loaded("eager", model)
    assert made.outputs(made.bind(1)())[0].shape == (1, PROMPT + NEW)


def test_counts_are_of_prompt_and_steps():
    """A cache saves the tokens known already: MACs of the layers are per token computed."""
    macs = {kv: describe(decoder(kv), 1)["macs"] for kv in ("none", "dynamic", "static")}
    one = describe(decoder(new_tokens=1), 1)["macs"]
    two = describe(decoder(new_tokens=2), 1)["macs"]
    step = two - one  # one token through the layers and the head
    head = decoder().module.lm_head.weight.numel()
    layers = step - head
    assert one == PROMPT * layers + head
    assert macs["dynamic"] == macs["static"] == one + (NEW - 1) * step
    assert macs["none"] == sum((PROMPT + i) * layers + head for i in range(NEW))


# --- memory format and int8 -----------------------------------------------------------------------


def test_channels_last_reaches_weights_and_inputs():
    small = {"model": "resnet-18", "width": 0.25, "image_size": 32}
    plain, model = (models.build(Workload(**small, channels_last=flag)) for flag in (False, True))
    (image,) = model.inputs(2).args
    weight = next(model.module.parameters())
    for tensor in (image, weight):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
        assert not tensor.is_contiguous()
    assert torch.equal(image, plain.inputs(2).args[0])
    with torch.no_grad():
        found = [m.module(*m.inputs(2).args).numpy() for m in (plain, model)]
    assert parity.compare([found[0]], [found[1]], "float32").within_tolerance is True


def test_int8_starts_from_float32():
    model = models.build(Workload(model="mlp", width=0.01, precision="int8"))
    assert {p.dtype for p in model.module.parameters()} == {torch.float32}
    assert model.inputs(1).args[0].dtype == torch.float32
