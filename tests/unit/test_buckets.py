"""Every rule of the bill, on names seen in real runs; counts and differences exactly."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from frameworktax.attribution.buckets import (
    UNREAD,
    classify,
    goes_by_caller,
    is_copy,
    is_judged,
    itemise,
    qualified,
    system_ticks,
    with_caller,
)
from frameworktax.attribution.sampler import SampleRun, Stretch, Ticks, sample
from frameworktax.attribution.symbols import STUB, Leaf
from frameworktax.clock import Clock
from frameworktax.records import BILL

TORCH = "libtorch_cpu.so"
PARTS = {
    *(
        "",
        UNREAD,
        "gemm",
        "packing",
        "convolution",
        "vectorised",
        "compiled",
        "jit",
        "memory",
        "libm",
    ),
    *("unnamed", "copying"),
}
LOOP = (
    "void c10::function_ref<void (char**, long const*, long, long)>::callback_fn<at::native::AVX2::"
    "VectorizedLoop2d<at::native::(anonymous namespace)::add_clamp(at::TensorIterator&)> >(long)"
)
FLASH = (
    "at::native::(anonymous namespace)::cpu_flash_attention<float, float, 32l, 512l, false>"
    "(at::Tensor const&, double)::{lambda(long, long)#2}::operator()(long, long) const"
)


def test_symbols_of_real_libraries_are_placed_as_by_hand():
    """The list was placed by reading it: torch, MKL on four processors, OpenBLAS, engines.

    At its end are names for every rule, and such as a rule must not take.
    """
    lines = (Path(__file__).parent / "symbols.tsv").read_text().splitlines()
    placed = [line.split("\t") for line in lines]
    assert len(placed) >= 380
    assert {bucket for _, _, bucket, _ in placed} <= set(BILL)
    assert {detail for *_, detail in placed} <= PARTS
    wrong = {
        (library, symbol): classify(Leaf(library, symbol))
        for library, symbol, bucket, detail in placed
        if classify(Leaf(library, symbol)) != (bucket, detail)
    }
    assert wrong == {}


def test_an_extension_of_torch_is_judged_by_its_code_whatever_its_name():
    """The loops of torchvision's nms and roi_align were dispatch, as its library is _C.so."""
    assert is_judged("_C.so", "spin") == "all"
    loop = "float vision::ops::(anonymous namespace)::bilinear_interpolate<float>(float const*)"
    assert classify(Leaf("_C.so", loop, "kernel")) == ("kernel", "unnamed")
    assert classify(Leaf("_C.so", loop, "other")) == ("remainder", "")
    assert classify(Leaf("_C.so", "at::Tensor::~Tensor()", "other")) == ("dispatch", "")


def test_of_an_operator_that_computes_small_cases_itself_only_loops_are_a_kernel():
    """As einsum("bd,bd->b") ends in, which was dispatch."""
    assert is_judged(TORCH, "_ZN2at6native19bmm_out_or_baddbmm_ERKNS_6TensorE") == "loops"
    symbol = "at::native::bmm_out_or_baddbmm_(at::Tensor const&)"
    assert classify(Leaf(TORCH, symbol, "kernel")) == ("kernel", "gemm")
    assert classify(Leaf(TORCH, symbol, "other")) == ("dispatch", "")
    assert classify(Leaf(TORCH, symbol, "unknown")) == ("dispatch", "")


def test_machine_code_says_what_an_unknown_library_does():
    own = "my_operator.cpython-311-x86_64-linux-gnu.so"
    assert is_judged(own, "spin") == "all"
    assert is_judged("_sha256.cpython-311-x86_64-linux-gnu.so", "spin") == "all"
    assert not is_judged(TORCH, "_ZN2at6native3bmmEv")
    assert is_judged(TORCH, None) == "all"
    assert not is_judged("libc.so.6", None)
    assert not is_judged("_json.cpython-311-x86_64-linux-gnu.so", None)
    assert classify(Leaf(own, "spin", "kernel")) == ("kernel", "unnamed")
    assert classify(Leaf(own, "parse", "other")) == ("remainder", "")


@pytest.mark.parametrize(
    ("caller", "place"),
    [
        (Leaf(TORCH, LOOP), ("kernel", "memory")),
        (Leaf(TORCH, "at::native::index_select_out_cpu_(at::Tensor const&)"), ("kernel", "memory")),
        (Leaf("libc10.so", "c10::SymInt::clone() const"), ("dispatch", "")),
        (Leaf("libpython3.11.so.1.0", "bytearray_init"), ("python", "")),
        (Leaf("libc.so.6", "malloc-internal"), ("allocator", "")),
        (Leaf("libengine.so", "sub_10", "copy"), ("kernel", "memory")),
        (Leaf("libengine.so", "sub_10", "other"), ("kernel", "copying")),  # whose it is, is open
        (Leaf("libz.so.1.2.13", "inflate", "other"), ("remainder", "")),
        (Leaf("_multiarray_umath.so", "raw_array_assign_array", "other"), ("kernel", "memory")),
    ],
)
def test_a_copy_goes_by_its_caller(caller, place):
    copy = Leaf("libc.so.6", "memcpy")
    assert is_copy(copy)
    assert not is_copy(Leaf("libc.so.6", "cfree"))
    assert classify(with_caller(copy, caller)) == place


@pytest.mark.parametrize(
    ("caller", "line"),
    [
        (Leaf("libpython3.13.so.1.0", "_PyObject_Malloc"), "python"),
        (Leaf("libc10.so", "c10::InferenceMode::is_enabled()"), "dispatch"),
        (Leaf("libonnxruntime.so.1.31.1", "sub_10", "other"), "runtime"),
        (Leaf(TORCH, LOOP), "dispatch"),  # it computes nothing
    ],
)
def test_the_lookup_of_a_threads_variable_goes_by_its_caller(caller, line):
    lookup = Leaf("ld-linux-x86-64.so.2", "__tls_get_addr")
    assert goes_by_caller(lookup)
    assert not goes_by_caller(Leaf("ld-linux-x86-64.so.2", "_dl_fixup"))
    assert classify(lookup) == ("dispatch", "")
    assert classify(with_caller(lookup, caller)) == (line, "")


def test_the_stub_of_a_call_is_part_of_its_caller():
    stub = Leaf(TORCH, STUB)
    assert goes_by_caller(stub)
    assert with_caller(stub, Leaf(TORCH, LOOP)) == Leaf(TORCH, LOOP)


def test_a_qualified_name_drops_arguments_and_return_type():
    assert qualified(FLASH).startswith("at::native::{anon}::cpu_flash_attention::{lambda")
    assert qualified("void at::parallel_for<f>(long, long)") == "at::parallel_for"
    assert qualified("std::pair<a<b>, c> x::y<(z)3>(d const&) const") == "x::y"
    assert qualified("operator delete(void*, unsigned long)").startswith("operator delete")
    assert qualified("a::operator<<(b&)") == "a::operator_"
    assert qualified("") == ""


GEMM = Leaf(TORCH, "mkl_blas_def_sgemm_kernel_0_zen")
PACK = Leaf(TORCH, "mkl_blas_def_sgemm_scopy_right16_bdz")
EVAL = Leaf("libpython3.11.so.1.0", "_PyEval_EvalFrameDefault")


def stretch(leaves, system, *, cpu_ns, wall_ns, lost=0, calls=10):
    return Stretch(Ticks(Counter(leaves), system, lost), calls, wall_ns, cpu_ns)


def test_a_run_becomes_the_fields_of_a_record():
    run = SampleRun(
        "perf-event",
        1000,
        (
            stretch({GEMM: 5, PACK: 2, EVAL: 2}, 1, cpu_ns=10_000, wall_ns=10_500),
            stretch({GEMM: 7, EVAL: 1}, 0, cpu_ns=8_000, wall_ns=8_000, lost=3, calls=4),
        ),
        777,
    )
    assert itemise(run) == {
        "method": "perf-event",
        "calls": 14,
        "wall_ns": 18_500,
        "latency_ns": 777,
        "period_ns": 1000,
        "off_cpu_ns": 500,
        "queued_ns": None,
        "page_faults": None,
        "samples": (
            {"kernel": 7, "python": 2, "system": 1},
            {"kernel": 7, "python": 1, "system": 0},
        ),
        "detail": {"gemm": 12, "packing": 2},
        "top": (
            ("kernel", GEMM.library, GEMM.symbol, 12),
            ("python", EVAL.library, EVAL.symbol, 3),
            ("kernel", PACK.library, PACK.symbol, 2),
        ),
        "lost": 3,
        "notes": (),
    }


@pytest.mark.parametrize(
    ("leaf", "code"),
    [
        (Leaf("libengine.so", "sub_10", "kernel"), "machine-code"),
        (Leaf("libengine.so", "sub_10", "other"), "machine-code"),
        (Leaf("libengine.so", ""), "unplaced"),
    ],
)
def test_a_note_says_where_machine_code_decided_or_nothing_is_known(leaf, code):
    for samples, expected in ((6, [code]), (5, [])):
        leaves = {leaf: samples, GEMM: 100 - samples}
        run = SampleRun("perf-event", 1000, (stretch(leaves, 0, cpu_ns=1, wall_ns=1),), 1)
        assert [found for found, _ in itemise(run)["notes"]] == expected


def test_missing_ticks_are_the_operating_system_and_stay_signed():
    more = stretch({GEMM: 6}, None, cpu_ns=10_000, wall_ns=10_000, lost=1)
    fewer = stretch({GEMM: 11}, None, cpu_ns=10_000, wall_ns=10_000)
    assert system_ticks(more, 1000) == 3
    assert system_ticks(fewer, 1000) == -1
    record = itemise(SampleRun("perf-event", 1000, (more, fewer), 1))
    assert [s["system"] for s in record["samples"]] == [3, -1]
    assert [code for code, _ in record["notes"]] == ["system-from-missing-ticks"]


def test_time_in_the_queue_is_told_where_every_stretch_knows_it():
    def run(*queued):
        return SampleRun(
            "perf-event",
            1000,
            tuple(Stretch(Ticks(Counter({GEMM: 9}), 0), 1, 10_000, 9_000, q) for q in queued),
            1,
        )

    assert itemise(run(300, 700))["queued_ns"] == 1_000
    assert itemise(run(300, None))["queued_ns"] is None


class Scripted:
    """A sampler and the clocks it runs under: a call takes 30 ns, 20 of them on the processor."""

    name, period_ns = "scripted", 10

    def __init__(self):
        self.now, self.cpu, self.log = 0, 0, []

    def start(self):
        self.log.append("start")

    def stop(self):
        self.log.append("stop")

    def ticks(self):
        return [Ticks(Counter({GEMM: 1}), 0) for word in self.log if word == "stop"]

    def call(self):
        self.now += 30
        self.cpu += 20
        self.log.append("call")


def scripted_run(**options):
    scripted = Scripted()
    clock = Clock(lambda: scripted.now, lambda: scripted.cpu, lambda _: None)
    return scripted, sample(scripted.call, scripted, clock=clock, **options)


def test_stretches_are_filled_with_calls():
    scripted, run = scripted_run(stretches=2, duration_ns=160, min_calls=1)
    assert scripted.log == ["start", "call", "call", "call", "stop"] * 2
    assert [(s.calls, s.wall_ns, s.cpu_ns) for s in run.stretches] == [(3, 90, 60), (3, 90, 60)]
    assert (run.calls, run.latency_ns, run.method) == (6, 30, "scripted")


def test_slow_calls_make_fewer_stretches_but_the_calls_asked_for():
    _, run = scripted_run(stretches=5, duration_ns=50, min_calls=3)
    assert [s.calls for s in run.stretches] == [1, 1, 1]
