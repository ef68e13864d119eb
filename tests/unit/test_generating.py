"""Time to the first token and per token, exact on a fake clock, from the call to the document."""

from dataclasses import replace

import pytest

from frameworktax import store
from frameworktax.analysis import grouping as points
from frameworktax.analysis.document import build
from frameworktax.analysis.grouping import PointRecords
from frameworktax.errors import UsageError
from frameworktax.measure import timing
from frameworktax.measure.plan import completed
from frameworktax.measure.recorder import Recorder
from frameworktax.measure.series import PointRun, Series
from frameworktax.records import Point, Subject, Workload
from frameworktax.store.columns import Batch, Blocks
from frameworktax.testing import FakeClock, FakeLoaded, FakeRuntime

FIRST, EACH, TOKENS = 900_000, 40_000, 16
WORKLOAD = Workload(model="m", phase="generate", new_tokens=TOKENS, kv_cache="dynamic")
POINT = Point(workload=WORKLOAD, runtime="fake")


def generating(clock):
    """A runtime whose calls take FIRST + 15 EACH, the first token after FIRST, times the batch."""
    return FakeLoaded(
        clock,
        cost_ns=lambda batch, number: batch * (FIRST + (TOKENS - 1) * EACH) + number,
        first_token_ns=lambda batch, number: batch * FIRST + number,
    )


def block_of(batch=1, calls=7):
    clock = FakeClock(start_ns=5)
    loaded = generating(clock)
    call = loaded.bind(batch)
    return timing.device_block(
        call, loaded.synchronize, calls=calls, first_token=loaded.first_token_ns, clock=clock
    )


def test_first_token_and_latency_are_those_of_the_same_call():
    block = block_of(calls=4)
    rest = (TOKENS - 1) * EACH
    assert [a - b for a, b in zip(block.latency_ns, block.first_token_ns, strict=True)] == [
        rest
    ] * 4
    numbers = [first - FIRST for first in block.first_token_ns]
    assert numbers == list(range(numbers[0], numbers[0] + 4))
    assert block.pipelined_ns == sum(block.latency_ns) == block.cpu_ns
    assert (block.pipelined_calls, block.enqueue_ns) == (4, None)


def test_without_generating_there_is_no_first_token():
    clock = FakeClock()
    loaded = FakeLoaded(clock)
    assert loaded.first_token_ns() is None
    assert timing.host_block(loaded.bind(1), calls=5, clock=clock).first_token_ns is None


def test_a_call_that_tells_no_first_token_makes_the_block_tell_none():
    clock = FakeClock()
    loaded = FakeLoaded(clock)
    first = loaded.first_token_ns
    block = timing.device_block(
        loaded.bind(1), loaded.synchronize, calls=5, first_token=first, clock=clock
    )
    assert block.first_token_ns is None
    assert block.latency_ns == (1_000,) * 5


def records(batch):
    blocks = []
    for process in range(3):
        for round_ in range(3):
            timed = block_of(batch)
            blocks.append(
                replace(timed, session="s", point=POINT.key(), process=process, round=round_)
            )
    return blocks


@pytest.mark.parametrize("batch", [1, 4])
def test_the_document_tells_both_exactly(batch):
    blocks = records(batch)
    subject = Subject(session="s", point=POINT, paradigm="eager")
    (m,) = build([subject, *blocks]).measurements
    middle = sorted(blocks[0].first_token_ns)[3]
    assert m.first_token_ns.value == middle
    assert middle == pytest.approx(batch * FIRST, abs=20)
    assert m.per_token_ns.value == batch * EACH  # the number of the call cancels
    assert m.per_token_ns.low == m.per_token_ns.high == batch * EACH
    assert m.latency_ns.value == middle + (TOKENS - 1) * batch * EACH


def test_one_token_has_no_time_per_further_token():
    one = replace(POINT, workload=replace(WORKLOAD, new_tokens=1))
    found = PointRecords(
        point=one,
        session="s",
        subject=Subject(session="s", point=one, paradigm="eager"),
        timed=Blocks([Batch.of(records(1))]),
        group=0,
    )
    assert points.per_token(found) is None
    assert points.aside(found, found.timed.first_token_ns) is not None


def test_a_forward_pass_has_neither():
    forward = Point(workload=Workload(model="m"), runtime="fake")
    plain = [replace(b, point=forward.key(), first_token_ns=None) for b in records(1)]
    (m,) = build([Subject(session="s", point=forward, paradigm="eager"), *plain]).measurements
    assert m.first_token_ns is None and m.per_token_ns is None and m.padding_share is None


def test_blocks_are_written_and_read_with_their_first_tokens(tmp_path):
    series = Series(FakeRuntime(), {POINT.workload.batch: POINT}, tmp_path)
    run = PointRun(series, POINT.workload.batch, 0, calls=7, call_ns=1)
    with store.Writer(tmp_path, "session") as writer:
        Recorder(writer).found(run, 0, block_of())
    (_, block), _ = store.read(tmp_path)
    assert block.first_token_ns == block_of().first_token_ns


# --- what may be asked for ----------------------------------------------------------------------


def test_what_generating_needs_is_written_out():
    made = completed(Workload(model="gpt2", phase="generate"))
    assert (made.new_tokens, made.kv_cache) == (16, "dynamic")
    asked = Workload(model="gpt2", phase="generate", new_tokens=3, kv_cache="static")
    assert completed(asked) == asked


def test_what_ragged_input_needs_is_written_out():
    made = completed(Workload(model="bert-base", input="ragged"))
    assert (made.length, made.length_mean, made.length_sd) == (128, 20.92, 10.18)
    own = completed(Workload(model="own.py:build", input="ragged"))
    assert own.length is None  # the mask it returns tells


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"input": "jagged"}, "did you mean 'ragged'"),
        ({"phase": "dream"}, "choose forward, generate"),
        ({"phase": "generate", "kv_cache": "big"}, "choose none, dynamic, static"),
        ({"new_tokens": 4}, "add it"),
        ({"kv_cache": "none"}, "add it"),
        ({"length_mean": 4.0}, "ragged only"),
        ({"phase": "generate", "input": "ragged"}, "prompts"),
        ({"phase": "generate", "new_tokens": 0}, "1 or more"),
        ({"phase": "generate", "length": 1020}, "1024 positions"),
        ({"input": "ragged", "length_mean": 400.0}, "mean must lie"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(fields, says):
    with pytest.raises(UsageError, match=says):
        completed(Workload(model="gpt2", **fields))


def test_old_points_keep_their_keys():
    """New fields say nothing of a dense forward pass, so stores written before still match."""
    assert Point(workload=Workload(model="m"), runtime="r").key() == "ab7a5591562667dc"
    asked = {WORKLOAD, replace(WORKLOAD, kv_cache="static"), replace(WORKLOAD, new_tokens=4)}
    assert len({replace(POINT, workload=w).key() for w in asked}) == 3


# --- what a runtime cannot do ---------------------------------------------------------------------


class Plain(FakeRuntime):
    """As a runtime from elsewhere that knows nothing of all this."""

    kv_caches = ()
    keeps_channels_last = False


class Static(Plain):
    kv_caches = ("static",)


class Packed(Plain):
    inputs = ("ragged",)


@pytest.mark.parametrize(
    ("runtime", "workload", "says"),
    [
        (Plain, {}, None),
        (Plain, {"input": "ragged"}, None),
        (Plain, {"phase": "generate", "kv_cache": "none"}, "forward passes only"),
        (Plain, {"channels_last": True}, "memory format"),
        (Static, {"phase": "generate", "kv_cache": "dynamic"}, "--kv-cache static, not dynamic"),
        (Static, {"phase": "generate", "kv_cache": "static"}, None),
        (Packed, {}, "choose --input ragged"),
        (Packed, {"input": "ragged"}, None),
        (FakeRuntime, {"phase": "generate", "kv_cache": "none", "channels_last": True}, None),
    ],
)
def test_what_a_runtime_cannot_run_it_says(runtime, workload, says):
    found = runtime().cannot(Workload(model="m", **workload))
    assert (says is None and found is None) or says in found
