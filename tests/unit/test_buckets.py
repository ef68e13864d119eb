"""Every rule of the bill, on names seen in real runs; counts and differences exactly."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from frameworktax.attribution.buckets import (
    DETAILS,
    classify,
    is_copy,
    is_judged,
    itemise,
    qualified,
    system_ticks,
    with_caller,
)
from frameworktax.attribution.sampler import SampleRun, Stretch, Ticks, sample
from frameworktax.attribution.symbols import Leaf
from frameworktax.clock import Clock
from frameworktax.records import BILL

TORCH = "libtorch_cpu.so"
LOOP = (
    "void c10::function_ref<void (char**, long const*, long, long)>::callback_fn<at::native::AVX2::"
    "VectorizedLoop2d<at::native::(anonymous namespace)::add_clamp(at::TensorIterator&)> >(long)"
)
FLASH = (
    "at::native::(anonymous namespace)::cpu_flash_attention<float, float, 32l, 512l, false>"
    "(at::Tensor const&, double)::{lambda(long, long)#2}::operator()(long, long) const"
)
PLACES = [
    (TORCH, "mkl_blas_def_sgemm_kernel_0_zen", "kernel", "gemm"),
    (TORCH, "mkl_blas_def_sgemm_pst", "kernel", "gemm"),
    (TORCH, "mkl_blas_def_xsgemv", "kernel", "gemm"),
    (TORCH, "mkl_blas_def_sgemm_scopy_right16_bdz", "kernel", "packing"),
    (TORCH, "mkl_blas_avx512_sgemm_copyan_bdz", "kernel", "packing"),
    (TORCH, "mkl_serv_cbwr_get", "dispatch", ""),
    (TORCH, "mkl_serv_allocate", "allocator", ""),
    (TORCH, "mm_account_ptr_by_tid", "allocator", ""),
    (TORCH, "mkl_vml_kernel_sTanh_EXHAynn", "kernel", "libm"),
    (TORCH, "Sleef_expf16_u10", "kernel", "libm"),
    (TORCH, LOOP, "kernel", "vectorised"),
    (TORCH, FLASH, "kernel", "vectorised"),
    (TORCH, "std::pair<float, float> at::native::AVX2::RowwiseMomentsImpl<float, 4l>(long)",
     "kernel", "vectorised"),
    (TORCH, "at::native::(anonymous namespace)::LayerNormKernelImpl(at::Tensor const&)",
     "kernel", "vectorised"),
    (TORCH, "at::internal::invoke_parallel<int>(long, long) [clone ._omp_fn.0]",
     "kernel", "vectorised"),
    (TORCH, "at::native::(anonymous namespace)::unfolded2d_copy<float>(float const*)",
     "kernel", "convolution"),
    (TORCH, "dnnl::impl::cpu::x64::jit_avx512_common_convolution_fwd_t<(dnnl_data_type_t)3>::"
     "execute_forward_2d(dnnl::impl::exec_ctx_t const&) const", "kernel", "convolution"),
    (TORCH, "dnnl::impl::cpu::x64::jit_uni_reorder_t::execute(int) const", "kernel", "packing"),
    (TORCH, "dnnl::impl::primitive_hashing::get_md_hash(dnnl_memory_desc const&)", "dispatch", ""),
    (TORCH, "dnnl::impl::cpu::x64::jit_uni_eltwise_fwd_t<3>::pd_t::init(dnnl_engine*)",
     "dispatch", ""),
    (TORCH, "dnnl_primitive_attr_create", "dispatch", ""),
    (TORCH, "ideep::tensor::get_desc() const", "dispatch", ""),
    # What takes a loop as an argument is not the loop, and attention's wrapper is no dot product.
    (TORCH, "at::TensorIteratorBase::serial_for_each(c10::function_ref<void (char**, long const*,"
     " long, long)>, at::Range) const", "dispatch", ""),
    (TORCH, "at::native::scaled_dot_product_attention(at::Tensor const&)", "dispatch", ""),
    (TORCH, "at::native::addmm_impl_cpu_(at::Tensor&, c10::Scalar const&)", "dispatch", ""),
    (TORCH, "c10::impl::OperatorEntry::lookup(c10::DispatchKeySet) const", "dispatch", ""),
    (TORCH, "at::_ops::transpose_int::call(at::Tensor const&, long, long)", "dispatch", ""),
    (TORCH, "std::_Hashtable<at::native::AVX2::Key, int>::find(int)", "dispatch", ""),
    (TORCH, "torch::jit::InterpreterStateImpl::runTemplate<false>(int)", "runtime", ""),
    (TORCH, "torch::inductor::_reinterpret_tensor(at::Tensor const&)", "runtime", ""),
    (TORCH, "aoti_torch_cpu_addmm_out", "runtime", ""),
    (TORCH, "", "remainder", ""),
    (TORCH, "sub_1234", "remainder", ""),
    ("libtorch_python.so", "torch::FunctionSignature::parse(_object*)", "dispatch", ""),
    ("libtorch_python.so", "torch::dynamo::(anonymous namespace)::GuardManager::check_nopybind"
     "(_object*)", "runtime", ""),
    ("libc10.so", "c10::alloc_cpu(unsigned long)", "allocator", ""),
    ("libc10.so", "c10::TensorImpl::compute_contiguous() const", "dispatch", ""),
    ("c4btb33th76zjjyhuef6autfkjqdks32kb6oq73wp6vm4bw2ccza.main.so", "kernel",
     "kernel", "compiled"),
    ("c3xp4uqbkwpjosodzb632p4mwqb7w62vy5jv7rzzq2rxzyisyvfc.wrapper.so", "cpp_fused_gelu_view_3",
     "kernel", "compiled"),
    ("c3xp4uqbkwpjosodzb632p4mwqb7w62vy5jv7rzzq2rxzyisyvfc.wrapper.so",
     "torch::aot_inductor::AOTInductorModel::run_impl(AtenTensorOpaque**)", "runtime", ""),
    ("c3xp4uqbkwpjosodzb632p4mwqb7w62vy5jv7rzzq2rxzyisyvfc.wrapper.so", "_init", "runtime", ""),
    ("libc.so.6", "__libc_malloc", "allocator", ""),
    ("libc.so.6", "cfree", "allocator", ""),
    ("libc.so.6", "malloc-internal", "allocator", ""),
    ("libc.so.6", "madvise", "allocator", ""),
    ("libc.so.6", "memcpy", "kernel", "memory"),
    ("libc.so.6", "__pthread_mutex_lock", "dispatch", ""),
    ("libc.so.6", "sub_8dc50", "dispatch", ""),
    ("libc-2.31.so", "malloc", "allocator", ""),
    ("libc.so.6", "sched_yield", "system", ""),
    ("libm.so.6", "sub_72db0", "kernel", "libm"),
    ("libstdc++.so.6.0.30", "operator new(unsigned long)", "allocator", ""),
    ("libstdc++.so.6.0.30", "__dynamic_cast", "dispatch", ""),
    ("ld-linux-x86-64.so.2", "__tls_get_addr", "dispatch", ""),
    ("libjemalloc.so.2", "", "allocator", ""),
    ("libgomp.so.1", "sub_1d0", "threading", ""),
    ("libiomp5.so", "__kmp_wait", "threading", ""),
    ("libpython3.11.so.1.0", "_PyEval_EvalFrameDefault", "python", ""),
    ("python3.11", "", "python", ""),
    ("python3.13t", "", "python", ""),
    ("_json.cpython-311-x86_64-linux-gnu.so", "", "python", ""),
    ("_sha256.cpython-311-x86_64-linux-gnu.so", "", "remainder", ""),
    ("libz.so.1.2.13", "crc32_z", "remainder", ""),
    ("my_operator.cpython-311-x86_64-linux-gnu.so", "spin", "remainder", ""),
    ("my_operator.so", "c10::intrusive_ptr<int>::retain_()", "dispatch", ""),
    ("_multiarray_umath.cpython-311-x86_64-linux-gnu.so", "FLOAT_add", "remainder", ""),
    ("libscipy_openblas64_-ff651d7f.so", "sgemm_kernel_ZEN", "kernel", "gemm"),
    ("onnxruntime_pybind11_state.cpython-311-x86_64-linux-gnu.so", "sub_12", "remainder", ""),
    ("libopenvino_intel_cpu_plugin.so", "", "remainder", ""),
    ("libcuda.so.550.54", "cuLaunchKernel", "launch", ""),
    ("libcublas.so.13", "", "dispatch", ""),
    ("libcublasLt.so.13", "sgemm_heuristic", "dispatch", ""),
    ("libcudnn_graph.so.9", "", "dispatch", ""),
    ("libnvrtc.so.13", "", "dispatch", ""),
    ("librocblas.so.5", "", "dispatch", ""),
    ("libMIOpen.so.1", "", "dispatch", ""),
    ("[jit]", "", "kernel", "jit"),
    ("[kernel]", "", "system", ""),
    ("[vdso]", "", "python", ""),
    ("[unknown]", "", "remainder", ""),
]  # fmt: skip


@pytest.mark.parametrize(("library", "symbol", "bucket", "detail"), PLACES)
def test_every_leaf_has_its_place(library, symbol, bucket, detail):
    assert classify(Leaf(library, symbol)) == (bucket, detail)
    assert bucket in BILL
    assert detail in ("", *DETAILS)


def test_symbols_of_real_libraries_are_placed_as_by_hand():
    """The list was placed by reading it: torch, MKL on four processors, OpenBLAS, engines."""
    lines = (Path(__file__).parent / "symbols.tsv").read_text().splitlines()
    placed = [line.split("\t") for line in lines]
    assert len(placed) >= 300
    wrong = {
        (library, symbol): classify(Leaf(library, symbol))
        for library, symbol, bucket, detail in placed
        if classify(Leaf(library, symbol)) != (bucket, detail)
    }
    assert wrong == {}


def test_machine_code_says_what_an_unknown_library_does():
    own = "my_operator.cpython-311-x86_64-linux-gnu.so"
    assert is_judged(own, True)
    assert is_judged("_sha256.cpython-311-x86_64-linux-gnu.so", True)
    assert not is_judged(TORCH, True)
    assert is_judged(TORCH, False)
    assert not is_judged("libc.so.6", False)
    assert not is_judged("_json.cpython-311-x86_64-linux-gnu.so", False)
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
        (Leaf("libz.so.1.2.13", "inflate"), ("remainder", "")),
    ],
)
def test_a_copy_goes_by_its_caller(caller, place):
    copy = Leaf("libc.so.6", "memcpy")
    assert is_copy(copy)
    assert not is_copy(Leaf("libc.so.6", "cfree"))
    assert classify(with_caller(copy, caller)) == place


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


def test_a_note_says_where_machine_code_decided():
    def codes(judged, named):
        leaves = {Leaf("libengine.so", "sub_10", "kernel"): judged, GEMM: named}
        run = SampleRun("perf-event", 1000, (stretch(leaves, 0, cpu_ns=1, wall_ns=1),), 1)
        return [code for code, _ in itemise(run)["notes"]]

    assert codes(6, 94) == ["machine-code"]
    assert codes(5, 95) == []


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


def test_a_sampler_that_stops_the_thread_tells_no_time_off_the_processor():
    run = SampleRun(
        "py-spy", 1000, (stretch({GEMM: 2}, None, cpu_ns=10_000, wall_ns=99_000),), 1, False
    )
    record = itemise(run)
    assert record["off_cpu_ns"] is None
    assert record["samples"] == ({"kernel": 2},)
    assert [code for code, _ in record["notes"]] == ["sampler-pauses-process"]


class Scripted:
    """A sampler and the clocks it runs under: a call takes 30 ns, 20 of them on the processor."""

    name, period_ns, counts_cpu_time = "scripted", 10, True

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
