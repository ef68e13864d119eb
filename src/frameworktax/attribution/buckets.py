"""Which line of the bill a sampled leaf belongs to, and a sampled run as fields of a record.

Libraries are known by their basename, never by their path: ``python3.11`` is part of the path
of every file of a virtual environment. Inside torch's libraries the demangled symbol decides.
Rules are tried in order; what has no symbol where a symbol is needed is ``remainder``.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from functools import cache
from typing import Any

from frameworktax.attribution.machine_code import Work
from frameworktax.attribution.sampler import SampleRun, Stretch
from frameworktax.attribution.symbols import JIT, KERNEL, UNKNOWN, Leaf

Place = tuple[str, str]
"""A line of ``records.BILL``, and the part of it ('' except for ``kernel``)."""

DETAILS = (
    "gemm", "packing", "convolution", "vectorised", "compiled", "jit", "memory", "libm", "unnamed",
    "copying",
)  # fmt: skip
"""Parts of kernel time. ``jit`` is code generated while running (oneDNN's loops and products);
``compiled`` are Inductor's loops; ``unnamed`` are loops that compute, and ``copying`` loops that
only move data, both in libraries of which nothing is known by name."""

_TOP = 20
_SYMBOL_CHARACTERS = 160
_NOTED = 0.05
"""Share of samples placed by machine code, or not at all, above which a note says so."""


def _rules(*rules: tuple[str, str, str]) -> list[tuple[re.Pattern[str], Place]]:
    return [(re.compile(pattern), (bucket, detail)) for pattern, bucket, detail in rules]


# Tried on the whole demangled name, template and function arguments included: loops that live in
# a callback are known by what they were made from.
_BY_SIGNATURE = _rules(
    (r"^(void )?c10::function_ref<void \((char\*\*|long, long)", "kernel", "vectorised"),
    (r"\[clone \._omp_fn", "kernel", "vectorised"),  # the body of a parallel region
    (r"^std::_Function_handler<.*dnnl::impl::.*::execute.*_M_invoke", "kernel", "convolution"),
)

# Tried on the qualified name alone ("at::native::AVX2::RowwiseMomentsImpl").
_BY_NAME = _rules(
    (r"^mkl_serv_(\w*alloc|free|de\w*)|^mm_\w*account", "allocator", ""),
    (r"^mkl_serv_|^mkl_set_", "dispatch", ""),  # asks for threads, processor and settings
    (r"^mkl_.*(_get_kernel_api|xerbla|errchk|get_size|_initialize_)|^mkl_vml_kernel_[GS]et",
     "dispatch", ""),
    # "nocopy" is the product that packs nothing; "acopied" one whose operand is packed already.
    (r"^mkl_.*gem[mv].*(nocopy|copied|_kernel|_ker\d)", "kernel", "gemm"),
    (r"^(mkl|cblas)_.*gem[mv].*(copy|pack)|^mkl_.*_copy[abnt]?_|^[sdcz]gem[mv]_pack",
     "kernel", "packing"),
    (r"^mkl_v[ms]|^vm?[sd][A-Z]", "kernel", "libm"),
    (r"^mkl_|^cblas_|^[sdcz]gem[mv]", "kernel", "gemm"),
    (r"^kai_get", "dispatch", ""),
    (r"^kai_.*pack_", "kernel", "packing"),
    (r"^kai_", "kernel", "gemm"),
    (r"^fbgemm::(?!fbgemmPacked).*[Pp]ack", "kernel", "packing"),
    (r"^fbgemm::|^xnn_.*ukernel|^pytorch_q8|^nnp_", "kernel", "gemm"),
    (r"^Sleef_|^__svml", "kernel", "libm"),
    # oneDNN: running a primitive is work; describing, hashing, looking up and making one is not.
    (r"^dnnl.*(pd_t::|_desc|primitive_hashing|cache|_init|create|query|attr)", "dispatch", ""),
    (r"^dnnl::impl::cpu::.*(reorder|copy|pack|transpose_dt)", "kernel", "packing"),
    (r"^dnnl::impl::cpu::.*gem[mv]", "kernel", "gemm"),
    (r"^dnnl::impl::cpu::.*::(execute|ker|compute|loop)", "kernel", "convolution"),
    (r"^(dnnl|ideep|Xbyak)", "dispatch", ""),
    # at::native: loops are compiled once per instruction set, in a namespace of that name.
    (r"^at::native::(AVX2|AVX512|DEFAULT|SVE\w*|VSX|ZVECTOR)::", "kernel", "vectorised"),
    (r"^at::native::(cpublas::({anon}::)?(gemm|use_blas_gemm)|.*shape_check)$", "dispatch", ""),
    (r"^at::native::.*(_sum$|ApplyGridSample|upsample_\w+_(channels_last|linear|loop))",
     "kernel", "vectorised"),
    (r"^at::native::.*(im2col|col2im|unfolded|vol2col|slow_conv|winograd|depthwise)",
     "kernel", "convolution"),
    (r"^at::native::.*(gem[mv]\w*$)", "kernel", "gemm"),
    (r"^at::native::.*({anon}|{lambda).*([kK]ernel|flash|loop|cpu_|_cpu|{lambda)",
     "kernel", "vectorised"),
    (r"^at::native::\w*(_kernel_impl|_loop\w*)$", "kernel", "vectorised"),
    (r"^at::vec::|^at::parallel_for|^at::internal::invoke_parallel", "kernel", "vectorised"),
    (r"^cpp_fused", "kernel", "compiled"),
    (r"^c10::.*(alloc_cpu|free_cpu|DefaultCPUAllocator|MemoryReporter|CachingAllocator)"
     r"|^c10::(Get(CPU)?Allocator|memoryProfilingEnabled)", "allocator", ""),
    (r"^operator (new|delete)", "allocator", ""),
    (r"^torch::(jit|inductor|aot_inductor|nativert|dynamo)::|^aoti_|AOTI", "runtime", ""),
    (r"^(_?dynamo_|eval_frame|custom_eval_frame|set_eval_frame|get_extra_state)", "runtime", ""),
    (r"^(onnxruntime|ov|openvino)::", "runtime", ""),
    (r"^(Mlas|mlas)", "kernel", "gemm"),
)  # fmt: skip

_LIBC = _rules(
    (r"^(__libc_)?(c|m|re|mem|v|pv|aligned_)?alloc$|^(__libc_)?(malloc|c?free|memalign)$"
     r"|malloc|morecore", "allocator", ""),
    (r"^(__)?s?brk$|^(__)?(mmap|munmap|mremap|madvise)(64)?$", "allocator", ""),
    (r"mem(cpy|move|set|pcpy)", "kernel", "memory"),
    (r"sched_yield|nanosleep|futex|^(__)?(syscall|read|write|poll|ioctl|p?select)$",
     "system", ""),
    (r"", "dispatch", ""),
)  # fmt: skip

_LIBRARIES = _rules(
    (r"^libc(-2.*)?\.so", "", "libc"),
    (r"^libtorch|^libc10|^_C\.|^libshm", "", "torch"),
    (r"^libpython|^python\d?(\.\d+)?t?$", "python", ""),
    (r"^c[a-z2-7]{40,}.*\.wrapper\.so$", "", "wrapper"),
    (r"^c[a-z2-7]{40,}.*\.so$", "kernel", "compiled"),
    (r"^lib(j|tc|mi|snm)e?malloc", "allocator", ""),
    (r"^lib(gomp|iomp|omp|tbb)", "threading", ""),
    (r"^lib(m|mvec|svml)(-2.*)?\.so", "kernel", "libm"),
    (r"openblas|^libblas|^libblis|^libmkl", "kernel", "gemm"),
    (r"^lib(stdc\+\+|gcc_s|pthread|dl|c\+\+)|^ld-(linux|musl)", "", "support"),
    (r"onnxruntime|^libopenvino|^openvino|^_pyopenvino", "", "engine"),
    (r"^lib(cuda|cudart|amdhip64|hsa-runtime64)(\.|-)", "launch", ""),
    # What Triton compiles for the host: one of the first for each kernel, which launches it.
    (r"^(__triton_launcher|cuda_utils|hip_utils)\.", "launch", ""),
    # What these compute runs on the device: on the host they choose kernels and prepare launches.
    (
        r"^lib(cu(blas|dnn|fft|rand|solver|sparse|pti|dss|tensor)|nv(rtc|JitLink|infer)|nccl|rccl"
        r"|(roc|hip)(blas|fft|rand|solver|sparse)|MIOpen)",
        "dispatch",
        "",
    ),
)

# Modules of the standard library whose time is work on buffers rather than the interpreter's.
_WORKING_MODULES = {"_bz2", "_lzma", "_md5", "_sha1", "_sha2", "_sha256", "_sha512", "_sha3",
                    "_blake2", "audioop", "binascii", "zlib"}  # fmt: skip


_BY_WORK: dict[Work, Place] = {
    "kernel": ("kernel", "unnamed"),
    "copy": ("kernel", "copying"),
    "other": ("runtime", ""),
    "unknown": ("remainder", ""),
}


def _first(rules: list[tuple[re.Pattern[str], Place]], text: str) -> Place | None:
    return next((place for pattern, place in rules if pattern.search(text)), None)


def qualified(symbol: str) -> str:
    """Return a demangled name without return type, template and function arguments.

    ``(anonymous namespace)`` becomes ``{anon}``, so that it survives.
    """
    text = symbol.split(" [clone")[0].replace("(anonymous namespace)", "{anon}")
    text = text.replace(") const::", ")::")
    if text.startswith("operator "):
        return text
    text = text.replace("operator()", "operator_call").replace("->", "")
    text = re.sub(r"operator(<<|>>|<=|>=|<|>)", "operator_", text)
    before = ""
    while before != text:
        before, text = text, re.sub(r"<[^<>()]*>|\([^<>()]*\)", "", text)
    words = [word for word in text.split() if word not in ("const", "volatile", "&", "&&")]
    return words[-1] if words else ""


def _is_named(symbol: str) -> bool:
    return bool(symbol) and not symbol.startswith(("sub_", "0x"))


@cache
def classify(leaf: Leaf) -> Place:
    """Return (line of the bill, part of it) for one leaf."""
    library, symbol, work, made_by = leaf
    if library == KERNEL or library == "[vsyscall]":
        return "system", ""
    if library == UNKNOWN:
        return "remainder", ""
    if library == JIT:  # named by a perf map: Python's own trampolines
        return ("python", "") if symbol.startswith("py::") else ("kernel", "jit")
    if library == "[vdso]":
        return "python", ""  # clocks that the measuring loop reads
    bucket, detail = _first(_LIBRARIES, library) or _extension_module(library)
    if bucket:
        return bucket, detail
    if detail == "libc":
        if made_by:
            return ("kernel", "copying") if made_by == "copying" else (made_by, "")
        return _first(_LIBC, symbol) or ("dispatch", "")
    if not _is_named(symbol):
        if work is not None and detail not in ("support", "wrapper"):
            return _BY_WORK[work]
        missing = {"support": ("dispatch", ""), "wrapper": ("runtime", "")}
        return missing.get(detail, ("remainder", ""))
    name = qualified(symbol)
    place = _first(_BY_SIGNATURE, symbol) or _first(_BY_NAME, name)
    if place is not None:
        return place
    if detail in ("wrapper", "engine"):
        return "runtime", ""
    if detail or re.match(r"(c10|at|torch|pybind11|std|THP)\b", name):
        return "dispatch", ""  # torch's own code, also where a user's operator inlined it
    return _BY_WORK[work] if work in ("kernel", "copy") else ("remainder", "")


def is_copy(leaf: Leaf) -> bool:
    """Return whether a leaf is ``memcpy`` or its like."""
    return leaf.library.startswith("libc") and classify(leaf) == ("kernel", "memory")


def with_caller(copy: Leaf, caller: Leaf) -> Leaf:
    """Return the leaf of a copy, with the line that it belongs to by what called it.

    A kernel's and an operator's are kernel time. Of those that a stripped library makes outside its
    loops it is not known whether they are an operator's: they are as its copying loops.
    """
    bucket, _ = classify(caller)
    if bucket in ("kernel", "system") or re.match(r"at::native::", qualified(caller.symbol)):
        return copy
    unknown = bucket == "runtime" and caller.work == "other"
    return copy._replace(made_by="copying" if unknown else bucket)


def is_judged(library: str, named: bool) -> bool:
    """Return whether machine code is to say what a library does at a place, named by a symbol."""
    bucket, detail = _first(_LIBRARIES, library) or _extension_module(library)
    return not bucket and (not detail or (not named and detail in ("engine", "torch")))


def _extension_module(library: str) -> Place:
    """Return the place of a module written in C: the standard library's belong to python."""
    module = library.split(".")[0]
    if module in sys.stdlib_module_names and ".so" in library and module not in _WORKING_MODULES:
        return "python", ""
    return "", ""


def system_ticks(stretch: Stretch, period_ns: int) -> int:
    """Return the ticks spent inside the operating system, from those that are missing.

    A sampler that is allowed user mode only records nothing for a tick inside the kernel, so that
    ``CPU time / period - ticks seen - ticks lost`` is the kernel's part. It is a difference of
    two counts: signed, right within one tick a stretch, and below zero now and then.
    """
    due = round(stretch.cpu_ns / period_ns)
    return due - sum(stretch.ticks.leaves.values()) - stretch.ticks.lost


def itemise(run: SampleRun) -> dict[str, Any]:
    """Return a sampled run as the fields of ``records.Attribution``.

    Notes are (code, text) pairs. Shares of a bucket are its samples over all samples of the
    stretch; ``off_cpu_ns`` is wall minus CPU time of the thread, signed, and None where the
    sampler itself stops the thread.
    """
    samples: list[dict[str, int]] = []
    detail: Counter[str] = Counter()
    leaders: Counter[tuple[str, Leaf]] = Counter()
    unplaced: Counter[str] = Counter()
    notes: list[tuple[str, str]] = []
    for stretch in run.stretches:
        buckets: Counter[str] = Counter()
        for leaf, count in stretch.ticks.leaves.items():
            bucket, part = classify(leaf)
            buckets[bucket] += count
            leaders[bucket, leaf] += count
            unplaced[leaf.library] += count * (bucket == "remainder")
            if part:
                detail[part] += count
        if stretch.ticks.system is not None:
            buckets["system"] += stretch.ticks.system
        elif run.counts_cpu_time:
            buckets["system"] += system_ticks(stretch, run.period_ns)
        samples.append(dict(buckets))
    if any(stretch.ticks.system is None for stretch in run.stretches):
        notes.append(
            ("system-from-missing-ticks", "kernel-mode samples are not allowed here; time in the "
             "operating system is CPU time minus the ticks seen in user mode")
            if run.counts_cpu_time
            else ("sampler-pauses-process", f"{run.method} pauses the process for every sample and "
                  "does not see the operating system: on calls under 1 ms its kernel share was "
                  "0.1 too low; allow perf_event_open for true shares")
        )  # fmt: skip
    total = sum(sum(stretch.values()) for stretch in samples)
    if detail["unnamed"] + detail["copying"] > _NOTED * total:
        notes.append(
            ("machine-code", "kernels without symbols are placed by their machine code; loops that "
             "only move data (copying) count as kernels, and intervals reach to where they do not")
        )  # fmt: skip
    if unplaced.total() > _NOTED * total:
        libraries = ", ".join(name for name, count in unplaced.most_common(3) if count)
        text = f"nothing is known of code in {libraries}: its time counts as tax, an upper bound"
        notes.append(("unplaced", text))
    off_cpu_ns = sum(stretch.wall_ns - stretch.cpu_ns for stretch in run.stretches)
    queued = [stretch.queued_ns for stretch in run.stretches]
    known = [ns for ns in queued if ns is not None]
    lost = sum(stretch.ticks.lost for stretch in run.stretches)
    return {
        "method": run.method,
        "calls": run.calls,
        "wall_ns": sum(stretch.wall_ns for stretch in run.stretches),
        "latency_ns": run.latency_ns,
        "period_ns": run.period_ns,
        "off_cpu_ns": off_cpu_ns if run.counts_cpu_time else None,
        "queued_ns": sum(known) if len(known) == len(queued) else None,
        "samples": tuple(samples),
        "detail": dict(detail),
        "top": tuple(
            (bucket, leaf.library, leaf.symbol[:_SYMBOL_CHARACTERS], count)
            for (bucket, leaf), count in leaders.most_common(_TOP)
        ),
        "lost": lost,
        "notes": tuple(notes),
    }
