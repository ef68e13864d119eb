"""Work in C that takes a known time, for the sampler's known answers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
SPIN = """
void spin(long n) {
    unsigned long x = 1;
    for (long i = 0; i < n; i++) {
        x = x * 6364136223846793005ul + 1;
        __asm__ volatile("" :: "r"(x));
    }
}
"""
PRODUCTS = """
#pragma GCC optimize("O3")  /* loops use vectors, as torch's do */
#include <string.h>
#include <time.h>

/* MKL's product of matrices that lie by columns, which torch's library has. */
typedef void (*gemm)(const char *, const char *, const int *, const int *, const int *,
                     const float *, const float *, const int *, const float *, const int *,
                     const float *, float *, const int *);
static const float one = 1, zero = 0;
static float input[30008 * 256], output[30008 * 256], weights[8 * 512 * 512], bias[512];
static float between[8][64 * 512], unbiased[64 * 512], ready;

static long thread_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000l + now.tv_nsec;
}

static void fill(void) {  /* pages that were never written share one that is always in a cache */
    if (ready) return;
    for (long i = 0; i < 30008 * 256; i++) input[i] = output[i] = 1.0f / (i % 7 + 1);
    for (long i = 0; i < 8 * 512 * 512; i++) weights[i] = 0.004f / (i % 5 + 1);
    for (long i = 0; i < 512; i++) bias[i] = 0.1f;
    ready = 1;
}

/* Return the processor time of a product of so many rows, and 8 more, by 256 x 256. */
long product(long multiply, long more) {
    int rows = more < 30000 ? more + 8 : 30008, wide = 256;
    fill();
    long begin = thread_ns();
    ((gemm)multiply)("n", "n", &wide, &rows, &wide, &one, weights, &wide, input, &wide, &zero,
                     output, &wide);
    return thread_ns() - begin;
}

/* Return that of eight layers of 64 x 512 by 512 x 512 into memory that is there, then a scaling;
   as eager computes them, or as TorchScript does, which adds the bias afterwards. */
long layers(long multiply, long scripted) {
    int rows = 64, wide = 512;
    fill();
    const float *x = input;
    long begin = thread_ns();
    for (int layer = 0; layer < 8; x = between[layer++]) {
        float *y = between[layer];
        for (int row = 0; row < rows && !scripted; row++)
            memcpy(y + row * wide, bias, sizeof bias);
        ((gemm)multiply)(scripted ? "n" : "t", "n", &wide, &rows, &wide, &one,
                         weights + layer * wide * wide, &wide, x, &wide, scripted ? &zero : &one,
                         scripted ? unbiased : y, &wide);
        for (int row = 0; row < rows && scripted; row++)
            for (int i = 0; i < wide; i++) y[row * wide + i] = unbiased[row * wide + i] + bias[i];
    }
    for (int i = 0; i < rows * wide; i++) unbiased[i] = x[i] * one;
    return thread_ns() - begin;
}
"""
SPINNING_NODE = """
#include <stdint.h>
#include <stddef.h>
#include <time.h>

/* A custom operator of ONNX Runtime by its C API, whose functions keep their numbers. */
struct operator {
    uint32_t version;
    void *(*create)(const struct operator *, const void **, const void *);
    const char *(*name)(const struct operator *);
    const char *(*provider)(const struct operator *);
    int (*input_type)(const struct operator *, size_t);
    size_t (*inputs)(const struct operator *);
    int (*output_type)(const struct operator *, size_t);
    size_t (*outputs)(const struct operator *);
    void (*compute)(void *, void *);
    void (*destroy)(void *);
    int (*input_kind)(const struct operator *, size_t);
    int (*output_kind)(const struct operator *, size_t);
};
enum { CREATE_DOMAIN = 26, ADD_OPERATOR = 27, ADD_DOMAIN = 28, GET_OUTPUT = 91 };
static const void **api;
static long spun_ns;

long spun(long restart) {
    long found = spun_ns;
    if (restart) spun_ns = 0;
    return found;
}

static long thread_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000l + now.tv_nsec;
}

static void compute(void *kernel, void *context) {
    int64_t one = 1;
    void *out;
    ((void *(*)(void *, size_t, const int64_t *, size_t, void **))api[GET_OUTPUT])(
        context, 0, &one, 1, &out);
    long begin = thread_ns();
    unsigned long x = 1;
    for (long i = 0; i < 300000; i++) {
        x = x * 6364136223846793005ul + 1;
        __asm__ volatile("" :: "r"(x));
    }
    spun_ns += thread_ns() - begin;
}

static void *create(const struct operator *o, const void **a, const void *i) { return &spun_ns; }
static const char *name(const struct operator *o) { return "Spin"; }
static const char *provider(const struct operator *o) { return 0; }
static int type(const struct operator *o, size_t i) { return 1; }
static size_t count(const struct operator *o) { return 1; }
static void destroy(void *kernel) {}
static int required(const struct operator *o, size_t i) { return 0; }
static const struct operator spin = {
    8, create, name, provider, type, count, type, count, compute, destroy, required, required};

void *RegisterCustomOps(void *options, const void **base) {
    void *domain;
    api = ((const void **(*)(uint32_t))base[0])(8);
    ((void *(*)(const char *, void **))api[CREATE_DOMAIN])("test", &domain);
    ((void *(*)(void *, const void *))api[ADD_OPERATOR])(domain, &spin);
    return ((void *(*)(void *, void *))api[ADD_DOMAIN])(options, domain);
}
"""


def load(code: str, name: str, folder: Path) -> Any:
    """Return a function that takes a number, compiled into a library of its own."""
    assert COMPILER is not None
    source, library = folder / f"{name}.c", folder / f"lib{name}_operator.so"
    source.write_text(code)
    flags = ("-O2", "-fno-builtin", "-shared", "-fPIC")
    subprocess.run([COMPILER, *flags, "-o", library, source], check=True)
    function = getattr(ctypes.CDLL(str(library)), name)
    function.argtypes, function.restype = [ctypes.c_long], ctypes.c_long
    return function
