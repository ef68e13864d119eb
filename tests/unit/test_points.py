import math
import random
from dataclasses import replace
from statistics import median

import pytest
import sample_records as data

from frameworktax.analysis import document
from frameworktax.analysis import grouping as gathered
from frameworktax.analysis import grouping as points
from frameworktax.records import Calibration, Note, Outcome, Session, Subject


def subject(at, session=data.SESSION, **more):
    return Subject(session=session, point=at, paradigm="eager", **more)


def outcome(at, status, reason=None, process=0, **more):
    return Outcome(
        session=data.SESSION, point=at.key(), process=process, status=status, reason=reason, **more
    )


def one(records):
    found, notes = gathered.gather(records)
    assert notes == []
    assert len(found) == 1
    return found[0]


AT = data.point("eager")


def test_two_level_estimate_is_exact():
    found = one([subject(AT), *data.blocks(AT, 4_400_000)])
    estimate = found.latency
    assert estimate.value == pytest.approx(4_400_000)
    assert estimate.method == "process-medians-of-block-medians"
    assert estimate.n == 3
    half = 4.302652729911275 * 44_000 / 3**0.5
    assert estimate.high - estimate.value == pytest.approx(half)
    assert found.pipelined.value == pytest.approx(4_400_000)
    assert points.aside(found, found.timed.enqueue_ns) is None
    assert [len(s) for s in points.samples(found)] == [25, 25, 25]


def test_newest_session_that_measured_the_point_is_told():
    def session(name, started):
        return Session(
            session=name, started=started, version="0", command=(), environment=data.ENVIRONMENT
        )

    records = [
        session("new", "2026-11-20T11:00"),
        session("old", "2026-11-20T10:00"),
        session("planned", "2026-11-20T12:00"),
        *(subject(AT, name) for name in ("old", "new", "planned")),
        *data.blocks(AT, 5_000_000, session="old"),
        *data.blocks(AT, 4_000_000, session="new"),
    ]
    assert one(records).latency.value == pytest.approx(4_000_000)


def test_a_session_that_was_cut_off_half_way_does_not_hide_one_that_was_not():
    whole = data.blocks(AT, 5_000_000, session="20260101T000000-a")
    cut = data.blocks(AT, 4_000_000, session="20260102T000000-b")[:4]
    both = [subject(AT, "20260101T000000-a"), subject(AT, "20260102T000000-b"), *cut]
    assert one([*both, *whole]).latency.value == pytest.approx(5_000_000)
    assert one(both).session == "20260102T000000-b"  # where there is no other it counts
    ended = replace(outcome(AT, "ok"), session="20260102T000000-b")
    assert one([*both, *whole, ended]).session == "20260102T000000-b"


def test_a_later_crash_does_not_hide_what_was_measured():
    old, new = "20260101T000000-a", "20260102T000000-b"
    crash = replace(outcome(AT, "crashed", "segmentation fault"), session=new)
    records = [subject(AT, old), subject(AT, new), crash, *data.blocks(AT, 5_000_000, session=old)]
    found = one(records)
    assert (found.session, gathered.status_of(found)) == (old, ("ok", None))
    (note,) = points.notes(found)
    assert note.code == "last-try-failed"
    assert f"session {new}, ended crashed: segmentation fault" in note.text
    again = [subject(AT, "20260103T000000-c"),
             *data.blocks(AT, 4_000_000, session="20260103T000000-c")]  # fmt: skip
    assert points.notes(one([*records, *again])) == []  # what was measured since is what counts
    cut = data.blocks(AT, 5_000_000, session=old)[:4]
    half = one([subject(AT, old), subject(AT, new), crash, *cut])
    assert gathered.status_of(half) == ("crashed", "segmentation fault")


def test_blocks_of_an_unknown_point_are_named_not_shown():
    found, notes = gathered.gather(data.blocks(AT, 1_000_000))
    assert found == []
    assert [n.code for n in notes] == ["no-subject"]


def test_status_is_the_worst_end_unless_something_was_timed():
    ends = [outcome(AT, "unavailable", "a"), outcome(AT, "crashed", "b", 1), outcome(AT, "failed")]
    assert gathered.status_of(one([subject(AT), *ends])) == ("crashed", "b")
    timed = one([subject(AT), *ends, *data.blocks(AT, 1_000_000)])
    assert gathered.status_of(timed) == ("ok", None)
    assert "process-lost" in {n.code for n in points.notes(timed)}


def test_notes_come_once_each():
    note = Note("seeded", "weights are seeded")
    ends = [outcome(AT, "ok", process=i, notes=(note,)) for i in range(3)]
    found = one([subject(AT, notes=(note,)), *ends, *data.blocks(AT, 1_000_000)])
    assert points.notes(found) == [note]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"wall_over_cpu": 1.06}, "wall-over-cpu"),
        ({"processes": (0.95, 1.0, 1.05)}, "wide-interval"),
        ({"processes": (1.0, 1.0)}, "few-processes"),
        ({"rounds": (1.0,)}, "few-blocks"),
    ],
)
def test_numbers_that_ask_for_a_note(change, code):
    clean = one([subject(AT), *data.blocks(AT, 1_000_000, wall_over_cpu=1.04)])
    assert points.notes(clean) == []
    found = one([subject(AT), *data.blocks(AT, 1_000_000, **change)])
    assert code in {n.code for n in points.notes(found)}


@pytest.mark.parametrize(
    ("off", "queued", "is_load"),
    [(0.75, 0.0, False), (0.75, 0.7, True), (0.0, 0.0, True), (0.75, None, True)],
)
def test_what_a_program_waits_by_itself_is_no_other_load(off, queued, is_load):
    seen = data.sampled(AT, 1_000_000, data.SHARES["eager"])
    wall_ns = seen.wall_ns
    seen = replace(
        seen,
        off_cpu_ns=round(off * wall_ns),
        queued_ns=None if queued is None else round(queued * wall_ns),
    )
    found = one([subject(AT), *data.blocks(AT, 1_000_000, wall_over_cpu=4.0), seen])
    assert ("wall-over-cpu" in {n.code for n in points.notes(found)}) == is_load


def test_wall_over_cpu_is_a_matter_of_the_cpu_only():
    at = replace(AT, platform="cuda:0")
    found = one([subject(at), *data.blocks(at, 1_000_000, wall_over_cpu=2.0)])
    assert points.notes(found) == []


@pytest.mark.parametrize(
    ("rounds", "moved", "processes", "is_noted"),
    [
        ((1.0, 1.3, 1.6), 1.0, 3, True),
        ((1.0, 1.3, 1.6), 1.1, 3, False),  # so did the host, or nearly so
        ((1.0, 1.3, 1.4), 1.0, 3, False),
        ((1.6, 1.3, 1.0), 1.0, 3, False),
        ((1.0, 1.3, 1.6), None, 3, False),  # nothing says what the host did
        ((1.0, 1.3, 1.6), 1.0, 2, False),
    ],
)
def test_calls_that_get_slower_in_every_process_have_a_note(rounds, moved, processes, is_noted):
    timed = data.blocks(AT, 1_000_000, rounds=rounds, processes=(1.0,) * processes)
    speeds = [] if moved is None else [1_000, 1_000, 1_000, 1_000, round(1_000 * moved)]
    calibrated = [
        Calibration(session=data.SESSION, round=number, latency_ns=(ns,))
        for number, ns in enumerate(speeds)
    ]
    found = one([subject(AT), *timed, *calibrated])
    assert ("gets-slower" in {n.code for n in points.notes(found)}) == is_noted


def test_one_process_that_gets_no_slower_is_enough_where_they_are_few():
    timed = [data.blocks(AT, 1_000_000, rounds=r) for r in ((1.0, 2.0, 2.0), (2.0, 2.0, 2.0))]
    mixed = [b for b in timed[0] if b.process] + [b for b in timed[1] if not b.process]
    calibrated = [
        Calibration(session=data.SESSION, round=number, latency_ns=(1_000,)) for number in range(5)
    ]
    found = one([subject(AT), *mixed, *calibrated])
    assert "gets-slower" not in {n.code for n in points.notes(found)}


def test_the_width_asked_for_decides_about_the_note():
    found = one([subject(AT), *data.blocks(AT, 1_000_000)])  # ± 2.5 %
    assert {n.code for n in points.notes(found, until=0.02)} == {"wide-interval"}


@pytest.mark.parametrize(
    ("processes", "died", "option"),
    [(6, 0, "--time-budget"), (12, 0, "--processes"), (11, 1, "--processes")],
)
def test_a_wide_interval_asks_for_what_narrows_it(processes, died, option):
    levels = [1 + 0.2 * (-1) ** number for number in range(processes)]
    states = ["ok"] * processes + ["failed"] * died
    ends = [outcome(AT, state, process=n) for n, state in enumerate(states)]
    found = one([subject(AT), *data.blocks(AT, 1_000_000, processes=levels), *ends])
    note, *_ = points.notes(found)
    assert note.text.endswith(f"give it more {option}")


def test_the_interval_of_a_latency_is_that_of_its_own_processes():
    rounds = [
        Calibration(session=data.SESSION, round=i, latency_ns=(ns,) * 3)
        for i, ns in enumerate((80_000, 100_000, 120_000))
    ]
    plain = one([subject(AT), *data.blocks(AT, 1_000_000)]).latency
    moved = one([subject(AT), *data.blocks(AT, 1_000_000), *rounds]).latency
    assert moved == plain


def drift_of(*calibrator_ns):
    return document.host_drift(dict(enumerate(calibrator_ns)))


def test_host_drift_by_hand():
    # stretches of two: logs 0, 0.01, 0.02, and 1.96 of their standard deviation of 0.01
    logs = (-0.001, 0.001, 0.009, 0.011, 0.019, 0.021)
    assert drift_of(*map(math.exp, logs)) == pytest.approx(1.96 * 0.01)
    assert drift_of(1.0, math.exp(0.01), math.exp(0.02)) == pytest.approx(1.96 * 0.01)
    assert drift_of(100.0, 110.0) is None


def test_host_drift_does_not_grow_with_the_rounds_as_their_range_does():
    rng = random.Random(3)

    def session(rounds):
        noise = [math.exp(rng.gauss(0, 0.02)) for _ in range(rounds)]
        slower = [w * (1 + 0.1 * i / rounds) for i, w in enumerate(noise)]
        return drift_of(*noise), drift_of(*slower)

    short, long_ = ([session(rounds) for _ in range(200)] for rounds in (9, 100))
    noise_short, noise_long = (median(n for n, _ in found) for found in (short, long_))
    assert noise_long < noise_short < 1.96 * 0.02
    # a host that slows down by 10 % moves 1.96 standard deviations of a uniform over 0.1
    assert median(m for _, m in long_) == pytest.approx(1.96 * 0.1 / math.sqrt(12), rel=0.2)
