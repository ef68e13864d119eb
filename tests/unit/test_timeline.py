"""A trace in order: launches, steps, duplicates, clocks."""

import json

import pytest
import trace_cases as cases

from frameworktax.traces import kineto, timeline


def ordered(tmp_path, *events):
    path = tmp_path / "t.json"
    path.write_text(cases.trace(*events))
    return timeline.build(kineto.read(path))


def test_a_step_as_arrays_in_the_order_of_the_launches(tmp_path):
    (step,) = ordered(tmp_path, *cases.one_step()).steps()
    assert (step.name, step.begin_ns, step.end_ns) == ("ProfilerStep#3", 10_000, 20_000)
    assert step.launch_start_ns.tolist() == [11_500, 15_000, 15_600]
    assert step.launch_end_ns.tolist() == [12_500, 15_400, 15_800]
    assert step.device_start_ns.tolist() == [12_600, 16_000, 17_000]
    assert step.device_end_ns.tolist() == [14_000, 17_500, 18_000]
    assert step.stream.tolist() == [7, 7, 8]
    assert step.is_kernel.tolist() == [True, True, False]
    assert step.waits_ns.tolist() == [[17_000, 19_000]]


def test_kernels_of_a_graph_share_a_launch(tmp_path):
    line = ordered(
        tmp_path,
        cases.launch(0, 10, 5, "cudaGraphLaunch"),
        cases.kernel(20, 30, 5),
        cases.kernel(30, 45, 5),
        cases.launch(11, 12, 6),
        cases.kernel(50, 60, 6),
    )
    assert int(line.is_launch.sum()) == 2
    (step,) = line.steps()
    assert step.name == timeline.WHOLE
    assert step.launch_start_ns.tolist() == [0, 0, 11]
    assert line.is_graph.tolist() == [True, False]


def test_a_runtime_call_and_the_driver_call_inside_it_are_one_launch(tmp_path):
    line = ordered(
        tmp_path,
        cases.launch(0, 10, 5),
        cases.launch(2, 8, 5, "cuLaunchKernel", cat="cuda_driver"),
        cases.launch(20, 30, 6, "cuLaunchKernelEx", cat="cuda_driver"),
        cases.launch(40, 44, 7, "someNewLaunchCall"),
        *(cases.kernel(10 * n, 10 * n + 5, n) for n in (5, 6, 7)),
    )
    assert line.calls.start_ns.tolist() == [0, 20, 40]
    assert line.is_launch.tolist() == [True, True, True]
    assert line.lost.sum() == 0


def test_launches_without_records_and_records_without_launches(tmp_path):
    line = ordered(
        tmp_path,
        cases.launch(0, 10, 5),
        cases.launch(20, 30, 6),
        cases.launch(30, 31, 8, "cudaMemsetAsync"),
        cases.kernel(11, 15, 5),
        cases.kernel(16, 18, 99),
    )
    assert line.lost.sum() == 1
    assert line.call.tolist() == [0, -1]


def test_without_correlations_no_launch_is_known_to_be_lost(tmp_path):
    line = ordered(tmp_path, cases.launch(0, 10, 5), cases.kernel(11, 15, 99))
    assert line.lost.sum() == 0


def test_records_belong_to_the_step_that_launched_them(tmp_path):
    line = ordered(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 100),
        cases.event("user_annotation", "ProfilerStep#2", 100, 200),
        cases.launch(90, 95, 1),
        cases.kernel(120, 150, 1),
        cases.kernel(160, 170, 77),
        cases.launch(300, 310, 2),
        cases.kernel(320, 330, 2),
    )
    assert line.step_of.tolist() == [0, 1, -1]


def test_exact_duplicates_count_once(tmp_path):
    line = ordered(
        tmp_path,
        cases.kernel(1, 5, 1),
        cases.kernel(1, 5, 1),
        cases.kernel(1, 5, 2),
        cases.kernel(1, 6, 1),
    )
    assert (len(line.work), line.duplicates) == (3, 1)


@pytest.mark.parametrize("shift", [-3_000, -100, 0, 5_000])
def test_a_device_that_runs_before_its_launch_is_moved(tmp_path, shift):
    line = ordered(tmp_path, *cases.one_step(shift))
    # the first two kernels begin 1,100 and 1,000 ns after their launches
    moved = max(0, -shift - 1_000)
    assert line.shift_ns == ({0: moved} if moved else {})
    assert line.work.start_ns.tolist()[0] == 12_600 + shift + moved
    assert (line.work.start_ns >= line.launch_start_ns).all()


def test_each_device_has_its_own_clock(tmp_path):
    line = ordered(
        tmp_path,
        cases.launch(1_000, 1_100, 1),
        cases.launch(1_200, 1_300, 2),
        cases.kernel(2_000, 2_500, 1, device=0),
        cases.kernel(200, 900, 2, device=1),
    )
    assert line.shift_ns == {1: 1_000}
    assert line.work.device.tolist() == [1, 0]
    assert line.work.start_ns.tolist() == [1_200, 2_000]


def test_steps_that_overlap_are_left_out_and_counted(tmp_path):
    line = ordered(
        tmp_path,
        *(cases.event("user_annotation", f"ProfilerStep#{n}", s, e)
          for n, s, e in [(1, 0, 100), (2, 50, 150), (3, 100, 200)]),
    )  # fmt: skip
    assert line.windows.names == ("ProfilerStep#1", "ProfilerStep#3")
    assert line.windows.overlapping == 1


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("step 3", True),
        ("Iteration#12", True),
        ("iter_7", True),
        ("stepper 3", False),
        ("x", False),
    ],
)
def test_marks_that_a_user_named_like_steps_are_steps(tmp_path, name, is_one):
    line = ordered(tmp_path, cases.event("user_annotation", name, 5, 9), cases.launch(0, 20, 1))
    assert line.windows.marked is is_one
    assert line.windows.names == ((name,) if is_one else (timeline.WHOLE,))


def test_the_device_tells_its_own_length_of_a_step(tmp_path):
    gpu = json.loads(cases.event("gpu_user_annotation", "ProfilerStep#3", 12_600, 18_000))
    line = ordered(tmp_path, *cases.one_step(), json.dumps(gpu))
    assert line.windows.device_ns.tolist() == [5_400]


def test_a_steps_length_on_the_device_reaches_over_all_its_streams(tmp_path):
    def mark(cat, name, start, end, tid):
        return cases.event(cat, f"ProfilerStep#{name}", start, end, tid=tid)

    line = ordered(
        tmp_path,
        mark("user_annotation", 1, 0, 100, 1),
        mark("gpu_user_annotation", 1, 10, 90, 7),
        mark("gpu_user_annotation", 1, 40, 95, 8),
        *(mark("user_annotation", 2, at, at + 100, 1) for at in (200, 400)),
        *(mark("gpu_user_annotation", 2, at, at + 50, 7) for at in (200, 400)),
    )
    assert line.windows.device_ns.tolist() == [85, -1, -1]  # two steps of a name: not known


def test_amd_calls_launch_replay_and_wait(tmp_path):
    line = ordered(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 100),
        cases.launch(0, 5, 1, "hipExtModuleLaunchKernel"),
        cases.launch(6, 9, 2, "hipGraphLaunch"),
        cases.launch(10, 12, 3, "hipMemcpyWithStream"),
        cases.launch(20, 60, 4, "hipStreamSynchronize"),
        cases.kernel(10, 20, 1),
        cases.kernel(20, 30, 2),
        cases.kernel(30, 40, 2),
        cases.kernel(40, 50, 3, cat="gpu_memcpy"),
    )
    assert line.is_launch.tolist() == [True, True, False]
    (step,) = line.steps()
    assert line.is_graph.tolist() == [False, True, False]
    assert step.waits_ns.tolist() == [[20, 60]]


@pytest.mark.parametrize("stray", [1, 2, 3, -1, 1_000])
def test_kernels_of_a_graph_that_are_numbered_wrongly_move_no_device(stray):
    """CUPTI before 13.1 update 1, in every session of a process but the first.

    By their numbers they would belong to the synchronise or the launch behind the graph's, to one
    a millisecond later, to the launch before it, or to nothing.
    """
    rows = [
        cases.event("user_annotation", "ProfilerStep#1", 0, 2_000_000),
        cases.launch(10_000, 15_000, 1),
        cases.kernel(18_000, 20_000, 1),
        cases.launch(30_000, 40_000, 2, "cudaGraphLaunch"),
        *(cases.kernel(at, at + 9_000, 2 + stray) for at in (45_000, 55_000, 65_000)),
        cases.launch(41_000, 80_000, 3, "cudaStreamSynchronize"),
        cases.launch(90_000, 95_000, 4),
        cases.kernel(98_000, 99_000, 4),
        cases.launch(1_500_000, 1_505_000, 5),
        cases.kernel(1_508_000, 1_509_000, 5),
    ]
    line = timeline.build(cases.parse(cases.trace(*rows)))
    assert line.shift_ns == {}
    names = [line.calls.name_of(int(i)) if i >= 0 else "" for i in line.call]
    found = dict(zip(line.work.start_ns.tolist(), names, strict=True))
    # In the order of their launches, where they are mixed with no other kernels.
    whose = "cudaGraphLaunch" if stray in (1, 1_000) else ""
    assert {found[at] for at in (45_000, 55_000, 65_000)} == {whose}
    assert bool(line.lost.any()) is not bool(whose)


def test_several_graphs_are_found_in_order_and_only_if_as_many_as_groups_of_kernels():
    def rows(graphs, first=50_000):
        starts = [n * 100_000 for n in range(graphs)]
        return [
            *(cases.launch(at, at + 9_000, 2 * n + 1, "cudaGraphLaunch")
              for n, at in enumerate(starts)),
            *(cases.kernel(at + first + k, at + first + k + 500, 1_000 - n)
              for n, at in enumerate((0, 100_000)) for k in (0, 600)),
        ]  # fmt: skip

    line = timeline.build(cases.parse(cases.trace(*rows(2))))
    assert line.launch_start_ns.tolist() == [0, 0, 100_000, 100_000]
    assert not line.lost.any() and line.is_graph.all()
    for other in (rows(3), rows(1), rows(2, first=-1_000)):  # as of records from before, or skewed
        line = timeline.build(cases.parse(cases.trace(*other)))
        assert (line.call < 0).all() and line.shift_ns == {}
