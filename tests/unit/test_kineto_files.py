"""Files in pieces: the numbers of events decoded one by one, notes on what is mangled."""

import gzip
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import trace_cases as cases

from frameworktax.errors import TraceError
from frameworktax.traces import kineto
from frameworktax.traces.events import CATEGORIES

DATA = Path(__file__).parents[1] / "data"
RECORDED = ("h100-bert-small-step.json", "a100-alexnet.json")
COLUMNS = ("name", "category", "start_ns", "end_ns", "thread", "correlation")


def read(tmp_path, content, name="t.json"):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return kineto.read(path)


def same(one, other):
    for column in COLUMNS:
        assert np.array_equal(getattr(one.events, column), getattr(other.events, column)), column
    assert one.events.names == other.events.names
    assert (one.resolution_ns, one.invalid) == (other.resolution_ns, other.invalid)


def one_by_one(path):
    """Return the trace without guesses where events end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto, "_last_border", lambda data: None)
        return kineto.read(path)


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("block", [64, 1000, 4 << 20])
def test_however_the_file_is_cut_its_events_are_those_decoded_one_by_one(monkeypatch, name, block):
    monkeypatch.setattr(kineto, "BLOCK_BYTES", block)
    found = kineto.read(DATA / name)
    same(found, one_by_one(DATA / name))
    assert (found.cut, found.malformed) == (None, 0)
    assert found.records == len(json.loads((DATA / name).read_text())["traceEvents"])


@pytest.mark.parametrize("name", RECORDED)
def test_gzipped_and_concatenated_members(tmp_path, name):
    text = (DATA / name).read_bytes()
    half = len(text) // 2
    packed = gzip.compress(text[:half]) + gzip.compress(text[half:])
    same(read(tmp_path, packed), one_by_one(DATA / name))


def test_a_bare_list_of_events(tmp_path):
    found = read(tmp_path, f"[\n{cases.kernel(1, 5, 1)},\n{cases.launch(0, 1, 1)}\n]\n")
    assert found.events.start_ns.tolist() == [1, 0]
    assert found.cut is None


def test_nanoseconds_of_epoch_times(tmp_path):
    at = 1_751_410_836_123_456_789
    found = read(
        tmp_path, cases.trace(cases.kernel(at, at + 1, 1), cases.kernel(at + 3, at + 5, 2))
    )
    assert found.events.start_ns.tolist() == [at, at + 3]
    assert cases.busy_ns(found) == {0: 3}


@pytest.mark.parametrize("at", [100, 400, 900, 1500])
def test_a_file_cut_anywhere_keeps_the_events_before(tmp_path, at):
    whole = cases.trace(*cases.one_step())
    found = read(tmp_path, whole[:at]) if at > 250 else None
    if found is None:
        with pytest.raises(TraceError, match="ends within"):
            read(tmp_path, whole[:at])
        return
    complete = whole[:at].count("}}")
    assert len(found.events) == complete
    assert "ends within" in found.cut


def test_a_file_cut_behind_its_events_says_so(tmp_path):
    whole = cases.trace(cases.kernel(1, 5, 1))
    assert "follows the list" in read(tmp_path, whole[:-1]).cut


def test_a_gzip_file_that_is_cut_or_damaged_keeps_what_could_be_unpacked(tmp_path):
    many = cases.trace(*(cases.kernel(i * 10, i * 10 + 5, i) for i in range(1, 4000)))
    packed = bytearray(gzip.compress(many.encode()))
    cut = read(tmp_path, bytes(packed[: len(packed) // 2]))
    assert 0 < len(cut.events) < 3999
    assert "gzip" in cut.cut
    packed[-8] ^= 255  # the checksum
    assert "gzip" in read(tmp_path, bytes(packed)).cut


def test_events_that_cannot_be_read_are_left_out(tmp_path):
    good = cases.kernel(1_000, 3_000, 1)
    bad = [
        good.replace('"ts": 1', '"ts": NaN, "x": 1'),
        good.replace('"ts": 1', '"ts": 01'),
        good.replace('"dur": 2', '"dur": -2'),
        good.replace('"dur": 2', '"dur": null'),
    ]
    found = read(tmp_path, cases.trace(good, *bad, good.replace('"ts": 1', '"ts": 9')))
    assert found.events.start_ns.tolist() == [1_000, 9_000]
    assert (found.malformed, found.invalid) == (3, 1)


def test_a_name_that_is_no_utf_8_is_the_name_of_an_event(tmp_path):
    """As the path of a source file may be, in Python frames; the event was left out."""
    path = tmp_path / "t.json"
    good = cases.kernel(1_000, 3_000, 1, name="Jose")
    path.write_bytes(cases.trace(good).encode().replace(b"Jose", b"Jos\xe9"))
    found = kineto.read(path)
    assert (found.events.names, found.malformed) == (("Jos\ufffd",), 0)


def test_what_cannot_be_read_harms_no_event_of_another_piece(monkeypatch, tmp_path):
    monkeypatch.setattr(kineto, "BLOCK_BYTES", 300)
    events = [cases.kernel(i * 10, i * 10 + 5, i) for i in range(1, 40)]
    events[20:20] = ["17"]
    events[9:9] = ['{"ph": 01}']
    found = read(tmp_path, cases.trace(*events))
    assert found.events.start_ns.tolist() == [i * 10 for i in range(1, 40)]
    assert (found.records, found.malformed, found.cut) == (40, 2, None)


def test_what_stands_between_events_is_no_event(tmp_path):
    found = read(tmp_path, cases.trace(cases.kernel(1, 2, 1), "17", "[2]", cases.kernel(4, 5, 2)))
    assert len(found.events) == 2
    assert found.malformed == 2


def test_brackets_and_commas_inside_names_and_arguments_do_no_harm(monkeypatch, tmp_path):
    monkeypatch.setattr(kineto, "BLOCK_BYTES", 50)
    names = ["a}, {b", '"}]', "\\", "{[", "traceEvents"]
    events = [
        cases.event("cpu_op", name, i, i + 1, list=[{"a": 1}, {"b": "}, {"}])
        for i, name in enumerate(names)
    ]
    found = read(tmp_path, cases.trace(*events))
    assert [found.events.name_of(i) for i in range(5)] == names
    assert (found.malformed, found.cut) == (0, None)


@pytest.mark.parametrize(
    ("pid", "correlation", "fits"), [(1, 1, True), (2, 2, True), (2, 1, False)]
)
def test_launches_of_two_processes_with_one_number_are_refused(tmp_path, pid, correlation, fits):
    fields = {"tid": 200, "pid": pid, "correlation": correlation}
    events = (
        cases.launch(0, 1_000, 1),
        cases.kernel(2_000, 3_000, 1),
        cases.event("cuda_runtime", "cudaLaunchKernel", 5_000, 6_000, **fields),
        cases.kernel(7_000, 8_000, correlation, device=1),
    )
    if fits:
        assert len(read(tmp_path, cases.trace(*events)).events) == 4
    else:
        with pytest.raises(TraceError, match="several processes"):
            read(tmp_path, cases.trace(*events))


def test_old_and_other_names_of_categories(tmp_path):
    def old(cat, **more):
        fields = {"ph": "X", "cat": cat, "name": "k", "pid": 3, "tid": 7, "ts": 1, "dur": 1}
        return json.dumps(fields | more)

    found = read(tmp_path, cases.trace(old("Kernel"), old("Memcpy"), old("hip_runtime")))
    events = found.events
    assert [CATEGORIES[c] for c in events.category] == [
        "kernel",
        "gpu_memcpy",
        "cuda_runtime",
    ]
    # these told device and stream as process and thread
    assert events.device.tolist() == [3, 3, -1]
    assert events.stream.tolist() == [7, 7, -1]


def test_of_what_stands_around_the_events_only_device_names_are_kept(tmp_path):
    head = '"metadata": {"token": "s3cret"}, "deviceProperties": [{"id": 0, "name": "L4"}], '
    found = read(tmp_path, cases.trace(cases.kernel(1, 2, 1), head=head))
    assert found.device_names == {0: "L4"}
    assert "s3cret" not in repr(found)
    tail = ', "deviceProperties": [{"id": 1, "name": "L40"}, {"id": 2, "name": "x"}], "t": [1]'
    found = read(tmp_path, cases.trace(cases.kernel(1, 2, 1), tail=tail))
    assert found.device_names == {1: "L40", 2: "x"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[" * 2_000_000, r"nested .*\b500\b"),
        (b'{"traceEvents": [' + b"[" * 2_000_000, r"nested .*\b500\b"),
        (b'{"traceEvents": [{"a": ' + b'{"a": ' * 500_000, r"nested .*\b500\b"),
        (b'{"traceEvents": []}', "none of its 0 events"),
        (b'{"traceEvents": [{"ph": "i"}]}', "none of its 1 events"),
        (b'{"traceEvents": {}}', "no list of traceEvents"),
        (b"{}", "no list of traceEvents"),
        (b"", "no list of traceEvents"),
        (b"hello", "no list of traceEvents"),
    ],
)
def test_what_is_no_trace_is_one_line(tmp_path, content, says):
    with pytest.raises(TraceError, match=says) as caught:
        read(tmp_path, content)
    assert "\n" not in str(caught.value)


def test_a_file_that_unpacks_to_a_thousand_times_its_size_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(kineto, "BOMB_BYTES", 1 << 20)
    with pytest.raises(TraceError, match="250 times"):
        read(tmp_path, gzip.compress(b"[" + b"{}," * 1_000_000, 9))


def test_an_event_without_end_is_refused_before_it_fills_the_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(kineto, "EVENT_LIMIT", 1 << 16)
    monkeypatch.setattr(kineto, "BLOCK_BYTES", 1 << 12)
    with pytest.raises(TraceError, match=r"one event .*MiB"):
        read(tmp_path, b'{"traceEvents": [{"name": "' + b"a" * 300_000)
    with pytest.raises(TraceError, match="no list of traceEvents"):
        read(tmp_path, b'{"a": "' + b"a" * 300_000)


def test_random_cuts_and_edits_end_in_a_result_or_one_line(tmp_path):
    draw = random.Random(7)
    whole = cases.trace(*cases.one_step()).encode()
    odd = [b"NaN", b"-1", b"1e999", b"9" * 30, b"[[", b"]}", b'"', b"\\", b"null", b"\xff", b"}, {"]
    outcomes = {"read": 0, "refused": 0}
    for _ in range(400):
        text = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(text))
            kind = draw.randrange(4)
            if kind == 0:
                del text[at:]
            elif kind == 1:
                text[at:at] = draw.choice(odd)
            elif kind == 2:
                del text[at : at + draw.randrange(200)]
            else:
                numbers = list(re.finditer(rb": (-?[\d.]+)", bytes(text)))
                if numbers:
                    found = draw.choice(numbers)
                    text[found.start(1) : found.end(1)] = draw.choice(odd)
            if not text:
                break
        try:
            events = read(tmp_path, bytes(text)).events
        except TraceError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
        else:
            assert (events.end_ns >= events.start_ns).all()
            outcomes["read"] += 1
    assert min(outcomes.values()) > 20
