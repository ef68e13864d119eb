"""Progress of sessions and studies: a picture on a terminal, few lines in a log."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from frameworktax.cli.progress import DRAW_SHARE, LOG_EVERY_S, ProgressView, drawable
from frameworktax.records import Point, Workload
from frameworktax.report.words import plus_minus
from frameworktax.stats import process_interval

NAMES = "bert-base, albert, distilbert, funnel, mobilebert, squeezebert, fnet (2 of 2)"


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def log(width=80, **more):
    out, clock = io.StringIO(), Clock()
    console = Console(file=out, width=width)
    return ProgressView(console, clock=clock, **more), out, clock


# --- in a log ---------------------------------------------------------------------------------


def go_on(view, clock, seconds=100):
    """Time eight blocks a second, as a session does."""
    point = Point(workload=Workload(model="bert-base", batch=8), runtime="onnxruntime")
    for _ in range(8 * seconds):
        clock.now += 0.125
        view.now(point)


def test_a_log_has_a_line_in_ten_seconds_and_none_is_long():
    view, out, clock = log()
    with view:
        view.counts({"open": 60})
        view.session(1, 5, NAMES, 960.0)
        for phase in ("setting up", "starting processes", "warming up", "measuring"):
            view.phase(phase)
        go_on(view, clock)
    lines = out.getvalue().splitlines()
    assert lines[0] == "session 1 of 5: bert-base and 6 more (2 of 2); about 16 min left"
    assert lines[1] == "  measuring: bert-base, onnxruntime, batch 8; about 16 min left"
    assert len(lines) == 1 + 100 / LOG_EVERY_S
    assert "albert" not in out.getvalue()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in out.getvalue()


def test_a_log_has_the_end_of_a_session():
    view, out, _ = log()
    view.counts({"open": 40})
    view.session(1, 1, "bert-mini", 60.0)
    view.counts({"measured": 30, "failed": 5, "open": 5})
    view.ended()
    assert out.getvalue().splitlines()[-1] == "  30 of 40 points measured, 5 failed, 5 left"


def test_values_of_a_study_say_of_which_width_they_are():
    view, out, _ = log(verbose=True)
    small = Workload(model="mlp", width=0.5)
    points = [Point(workload=replace(small, batch=batch), runtime="eager") for batch in (1, 2)]
    view.session(1, 1, "mlp", 60.0)
    view.asked(points, 0.03)
    view.measured(points[0], [[1e6]])
    assert "1.00 ms" not in out.getvalue()  # the other batch has none yet
    view.measured(points[1], [[2e6]])
    last = out.getvalue().splitlines()[-1]
    assert last == "    mlp, eager, width × 0.5: 1.00 ms at batch 1, 2.00 ms at batch 2"


def test_what_is_said_stays_whole_and_means_nothing_to_the_terminal():
    view, out, _ = log(width=40)
    view.say("[bold]" + "x" * 100)
    assert out.getvalue() == "[bold]" + "x" * 100 + "\n"


# --- on a terminal ----------------------------------------------------------------------------


def shown(view, width=80):
    out = io.StringIO()
    Console(file=out, width=width).print(view.picture())
    return [line.rstrip() for line in out.getvalue().splitlines()]


def picture(**more):
    view, *_ = log(live=True, **more)
    view.counts({"measured": 10, "open": 40, "given-up": 1})
    view.session(2, 5, NAMES, 840.0)
    view.asked(ASKED, 0.03)
    view.phase("measuring")
    for point in ASKED:
        view.measured(point, PROCESSES)
    view.now(Point(workload=Workload(model="bert-base", batch=8), runtime="onnxruntime"))
    return view


def test_the_picture_says_what_runs_what_is_done_and_what_was_found():
    view = picture()
    lines = shown(view)
    assert "14 of 51 points measured, 1 failed, 36 left; about 14 min left" in lines
    assert "session 2 of 5: bert-base and 6 more (2 of 2)" in lines
    assert "  measuring" in lines
    assert "  next: bert-base, onnxruntime, batch 8" in lines
    assert [line.split()[0] for line in lines if line.startswith(RUNTIMES)] == list(RUNTIMES)
    assert max(map(len, lines)) <= 80
    view.counts({"measured": 14, "open": 36, "given-up": 1})
    view.ended()
    assert "14 of 51 points measured, 1 failed, 36 left; about 14 min left" in shown(view)


def drawn(view, act):
    """Return how often the view was drawn while something was done with it."""
    count = []
    view._live.update = lambda picture, refresh: count.append(picture)
    act()
    return len(count)


def test_it_is_drawn_twice_a_second_at_most():
    view, _, clock = log(live=True)
    view.session(1, 1, "a", 60.0)
    view.phase("measuring")
    assert 10 <= drawn(view, lambda: go_on(view, clock, seconds=10)) <= 21


def test_a_slow_terminal_is_drawn_on_for_a_small_share_of_the_time():
    view, _, clock = log(live=True)
    count = []

    def slow(picture, refresh):
        count.append(picture)
        clock.now += 0.1

    view._live.update = slow
    view.phase("measuring")
    go_on(view, clock, seconds=100)
    assert 0.1 * len(count) <= (DRAW_SHARE + 0.005) * clock.now


def test_it_draws_and_leaves_nothing_behind():
    out = Terminal()
    console = Console(file=out, force_terminal=True, width=80, height=30, color_system="256")
    view = ProgressView(console, clock=Clock())
    with view:
        view.counts({"open": 3})
        view.session(1, 1, "bert-base", 60.0)
        view.say("a line that stays")
        view.phase("measuring")
    text = out.getvalue()
    assert "\x1b[2K" in text and "a line that stays" in text
    assert text.rindex("a line that stays") < text.rindex("measuring")


@pytest.mark.parametrize(
    ("file", "terminal", "draws"),
    [(io.StringIO, False, False), (io.StringIO, True, False), (Terminal, True, True)],
    ids=["piped", "colour forced in a pipe", "terminal"],
)
def test_only_a_terminal_is_drawn_on(file, terminal, draws, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert drawable(Console(file=file(), force_terminal=terminal)) is draws
    monkeypatch.setenv("TERM", "dumb")
    assert not drawable(Console(file=file(), force_terminal=terminal))


# --- one session ------------------------------------------------------------------------------


def test_the_bar_of_one_session_in_a_log():
    view, out, clock = log()
    with view:
        view.remaining(60.0)
        for phase in ("setting up", "starting processes", "measuring"):
            view.phase(phase)
        go_on(view, clock, 30)
    assert out.getvalue().splitlines() == [
        "setting up; about 60 s left",
        "measuring: onnxruntime, batch 8; about 50 s left",
        "measuring: onnxruntime, batch 8; about 40 s left",
        "measuring: onnxruntime, batch 8; about 30 s left",
    ]


def test_a_session_alone_takes_over_its_estimate_and_one_of_a_study_does_not():
    view, out, clock = log()
    clock.now += 300  # it may have waited for another one
    view.remaining(30.0)
    view.phase("measuring")
    assert "30 s" in out.getvalue()
    view.session(1, 2, "a", 600.0)
    view.remaining(5.0)
    assert out.getvalue().endswith("about 10 min left\n") and view._left() == "about 10 min left"


# --- the table that grows -----------------------------------------------------------------------

RUNTIMES = ("eager", "onnxruntime")
ASKED = [
    Point(workload=Workload(model="bert-mini", batch=batch), runtime=runtime)
    for runtime in RUNTIMES
    for batch in (1, 8)
]
PROCESSES = [[1_000_000.0, 1_010_000.0], [1_020_000.0], [990_000.0]]
"""Medians of the blocks of three processes: 1.005, 1.02 and 0.99 ms."""


def growing(**more):
    view, out, clock = log(width=100, **more)
    view.asked(ASKED, 0.03)
    view.phase("measuring")
    return view, out, clock


def test_the_table_stands_with_the_first_value():
    view, _, _ = growing(live=True)
    assert not any("batch 1" in line for line in shown(view, 100))
    view.measured(ASKED[0], [[1_000_000.0, 1_001_000.0]])
    rows = [line.split() for line in shown(view, 100)]
    assert ["eager", "1.00", "·"] in rows  # two blocks have no interval worth a look
    assert any(row[:5] == ["1", "of", "4", "points", "have"] for row in rows)
    view.measured(ASKED[0], PROCESSES)
    half = plus_minus(process_interval(PROCESSES)).replace(" ", "")
    assert ["eager", "1.00", half, "·"] in [line.split() for line in shown(view, 100)]


def test_an_estimate_that_is_over_is_no_estimate():
    view, _, clock = growing(live=True)
    view.remaining(5.0)
    assert "about 5 s left" in shown(view, 100)
    clock.now += 6.0
    assert "longer than estimated" in shown(view, 100)


def test_the_estimate_of_a_session_includes_those_that_follow_and_says_what_is_in_none():
    view, _, clock = growing(live=True)
    view.follows(595.0, "exporting on top")
    view.remaining(5.0)
    assert "about 10 min left, exporting on top" in shown(view, 100)
    clock.now += 601.0
    assert "longer than estimated, exporting on top" in shown(view, 100)


def test_twins_and_the_floor_are_no_results():
    view, out, _ = growing(live=False)
    floor = Point(workload=Workload(model="null"), runtime="null")
    twin = Point(workload=Workload(model="bert-mini", twin=True), runtime="eager")
    view.measured(floor, PROCESSES)
    view.measured(twin, PROCESSES)
    view.measured(ASKED[0], [[], []])  # no block yet
    assert not view._medians and len(view._asked) == 4
    assert len(out.getvalue().splitlines()) == 1


def test_what_is_set_up_beside_is_shown_until_it_is_ready():
    view, _, clock = growing(live=True)
    view.setting_up("inductor", "compiling")
    clock.now += 12.0
    assert "  set-up: inductor (compiling, 12 s)" in shown(view, 100)
    view.ready("inductor")
    assert not any("inductor" in line for line in shown(view, 100))


def test_the_table_has_the_family_measured_last():
    view, _, _ = growing(live=True)
    other = Point(workload=Workload(model="bert-mini", precision="bfloat16"), runtime="eager")
    view.measured(ASKED[0], PROCESSES)
    view.measured(other, [[2_000_000.0]])
    lines = shown(view, 100)
    assert any("bfloat16" in line for line in lines)
    assert ["eager", "2.00"] in [line.split() for line in lines]


@pytest.mark.parametrize("width", [30, 60, 120])
def test_a_narrow_table_has_values_alone(width):
    view, _, _ = log(live=True, width=width)
    batches = (1, 2, 4, 8, 16, 32)
    points = [Point(workload=Workload(model="m", batch=b), runtime="eager") for b in batches]
    view.asked(points, 0.03)
    for point in points:
        view.measured(point, PROCESSES)
    lines = shown(view, width)
    assert max(map(len, lines)) <= width
    assert any("±" in line for line in lines) is (width == 120)


def test_a_log_has_a_line_for_each_runtime_once_all_its_batches_have_values():
    view, out, _ = growing(live=False)
    view.measured(ASKED[0], PROCESSES)
    assert len(out.getvalue().splitlines()) == 1
    view.measured(ASKED[1], [[4_000_000.0]])
    view.measured(ASKED[0], PROCESSES)
    view.measured(ASKED[2], PROCESSES)
    line = out.getvalue().splitlines()[-1]
    half = plus_minus(process_interval(PROCESSES))
    assert line == f"  eager: 1.00 ms {half} at batch 1, 4.00 ms at batch 8"
    assert len(out.getvalue().splitlines()) == 2


def test_a_log_has_the_line_of_a_runtime_of_which_a_batch_failed():
    view, out, _ = growing(live=False)
    view.measured(ASKED[0], [[1_000_000.0]])
    assert len(out.getvalue().splitlines()) == 1
    for phase in ("starting processes", "warming up"):
        view.phase(phase)
    view.measured(ASKED[0], PROCESSES)
    lines = [line for line in out.getvalue().splitlines() if "eager" in line]
    assert lines == ["  eager: 1.00 ms at batch 1, no value at batch 8"]
