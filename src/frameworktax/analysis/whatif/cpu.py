"""What-if answers for a point measured on a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from frameworktax.analysis.bill import TWIN
from frameworktax.analysis.estimates import product, quotient
from frameworktax.analysis.whatif import formula_errors as shown
from frameworktax.analysis.whatif import formulas
from frameworktax.analysis.whatif.request import Answer, Refused, WhatIf, batches
from frameworktax.records import Estimate, Measurement

HOST = "tax / host speed + kernels"
RUNTIME = "kernels + warm overhead"
IN_SITU = "kernels + tax between warm overheads"
WIDTH = "tax + width² × gemm + width × rest"
BATCH = "line over batch"
DEPTH = "line over depth"
REUSE = 4.0
"""Uses of a weight a call, multiply-adds over parameters, under which kernels move weights more
than they compute."""
POINTS = 3
"""Measured batches that the line is drawn through, the largest below the one in question."""


def answer(
    m: Measurement,
    relatives: Sequence[Measurement],
    everything: Sequence[Measurement],
    asked: WhatIf,
) -> Answer | Refused:
    """Answer one change from one point.

    Args:
        m: where it starts.
        relatives: points that differ from it in runtime and batch alone, itself included.
        everything: all points of the document.
        asked: one change.
    """
    if asked.device_speed or asked.graphs:
        option = "--graphs" if asked.graphs else "--device-speed"
        reason = f"{option} needs a device: this point ran on the CPU; ask --host-speed"
        return Refused(formula="none", reason=reason)
    if asked.runtime:
        return _runtime(m, relatives, asked.runtime)
    if asked.batch:
        return _batch(m, relatives, asked.batch)
    if asked.depth:
        return _depth(m, everything, asked.depth)
    return _from_share(m, asked)


def _from_share(m: Measurement, asked: WhatIf) -> Answer | Refused:
    formula = HOST if asked.host_speed else WIDTH
    share = m.tax_share
    if share is None or m.bill_method in (None, TWIN):
        reason = f"kernel time of {m.runtime} is not known by sampling; only its twin's bound"
        return Refused(formula=formula, reason=reason)
    if asked.host_speed:
        return _scaled(m, formulas.faster_host(share, asked.host_speed), formula)
    if moved := streams(m):
        return Refused(formula=formula, reason=moved)
    matrix = formulas.matrix_share(m.kernel_detail_ns or {}, m.flops, m.macs)
    if matrix is None:
        return Refused(
            formula=formula, reason="how much of the kernels is matrix products is not known"
        )
    return _scaled(m, formulas.wider(share, matrix, asked.width or 1.0), formula)


def streams(m: Measurement) -> str | None:
    """Return why the size of the weights cannot be changed on paper, or None.

    Where a weight is used about once a call, kernels take the time of moving weights, and that
    jumps when a larger model leaves the cache it was in: twice the depth of an MLP whose weights
    just fitted took four times as long.
    """
    if not m.macs or not m.parameters or m.macs / m.parameters >= REUSE:
        return None
    return (
        f"each weight is used {m.macs / m.parameters:.2g} times a call: the time is that of moving "
        "weights, which depends on the cache that holds them; measure, do not predict"
    )


def _scaled(m: Measurement, ratio: Estimate, formula: str) -> Answer | Refused:
    if m.latency_ns is None or ratio.low <= 0:
        return Refused(formula=formula, reason="its interval reaches zero; measure it for longer")
    return Answer(
        formula=formula,
        latency=product(m.latency_ns, ratio, formula),
        factor=inverse(ratio),
    )


def inverse(ratio: Estimate) -> Estimate:
    """Return 1 / ratio, its ends exchanged."""
    return replace(ratio, value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)


def _runtime(m: Measurement, relatives: Sequence[Measurement], name: str) -> Answer | Refused:
    found = runtime_answers(m, relatives, name)
    if isinstance(found, Refused):
        return found
    known = shown.table()  # where neither was checked: the one that counts what real kernels do
    return min(found, key=lambda a: known[a.formula]["median"] if a.formula in known else math.inf)


def runtime_answers(
    m: Measurement, relatives: Sequence[Measurement], name: str
) -> list[Answer] | Refused:
    """Return what each formula for another runtime with the same kernels gives.

    Args:
        m: where it starts.
        relatives: points that differ from it in runtime and batch alone.
        name: of the other runtime.
    """
    if name not in formulas.SAME_KERNELS or m.runtime not in formulas.SAME_KERNELS:
        other = name if name not in formulas.SAME_KERNELS else m.runtime
        reason = f"{other} runs other kernels; measure, do not predict"
        return Refused(formula=RUNTIME, reason=reason)
    if m.tax_share is None or m.latency_ns is None or m.bill_method in (None, TWIN):
        return Refused(formula=RUNTIME, reason=f"kernel time of {m.runtime} was not sampled")
    warm, own = _warm(relatives, name), _warm(relatives, m.runtime)
    if warm is None:
        reason = (
            f"the warm overhead of {name} is not known; measure it at a small batch: "
            f"--runtimes {m.runtime},{name} --batch 1 --twin all"
        )
        return Refused(formula=RUNTIME, reason=reason)
    found = []
    if own is not None:
        ratio = formulas.other_runtime_in_situ(
            m.tax_share, quotient(warm, own, IN_SITU), quotient(own, m.latency_ns, IN_SITU)
        )
        found.append(_scaled(m, ratio, IN_SITU))
    plain = formulas.other_runtime(m.tax_share, quotient(warm, m.latency_ns, RUNTIME))
    found.append(_scaled(m, plain, RUNTIME))
    answers = [answer for answer in found if isinstance(answer, Answer)]
    refused = [answer for answer in found if isinstance(answer, Refused)]
    return answers or refused[0]


def _warm(relatives: Sequence[Measurement], runtime: str) -> Estimate | None:
    """Return the twin's latency in a runtime, at the smallest batch that has one."""
    found = [m.warm_overhead_ns for m in batches(relatives, runtime) if m.warm_overhead_ns]
    return found[0] if found else None


def _batch(m: Measurement, relatives: Sequence[Measurement], batch: int) -> Answer | Refused:
    row = [o for o in batches(relatives, m.runtime) if o.latency_ns is not None]
    below = [o for o in row if o.workload.batch < batch] or row
    points = alike(below)[-POINTS:]
    if len(points) < 2 <= len(below):
        before, last = below[-2], below[-1]
        reason = (
            f"other kernels took over between batch {before.workload.batch} ({kind(before)}) and "
            f"{last.workload.batch} ({kind(last)}); measure nearer to it"
        )
        return Refused(formula=BATCH, reason=reason)
    return on_line(
        [float(o.workload.batch) for o in points],
        [o.latency_ns for o in points if o.latency_ns is not None],
        float(batch),
        BATCH,
        "--batch 1,2,4",
    )


def kind(m: Measurement) -> str | None:
    """Return the part that most of the kernel time is in, None where it was not sampled."""
    detail = m.kernel_detail_ns
    return max(detail, key=lambda name: detail[name]) if detail else None


def alike(row: Sequence[Measurement]) -> list[Measurement]:
    """Return the largest batches whose kernels are of one kind, ascending.

    Libraries change their algorithm with the size of a product: a convolution of one image is
    another kernel than one of two, and a line through both is a line through neither. A point
    without samples counts as of the same kind.
    """
    found: list[Measurement] = []
    known = next((kind(m) for m in reversed(row) if kind(m)), None)
    for m in reversed(row):
        if kind(m) not in (known, None):
            break
        found.insert(0, m)
    return found


def _depth(m: Measurement, everything: Sequence[Measurement], depth: float) -> Answer | Refused:
    if reason := streams(m):
        return Refused(formula=DEPTH, reason=reason)
    row = sorted(
        (
            o
            for o in everything
            if replace(o.workload, depth=m.workload.depth) == m.workload
            and (o.runtime, o.platform, o.threads) == (m.runtime, m.platform, m.threads)
            and o.latency_ns is not None
        ),
        key=lambda o: o.workload.depth,
    )
    return on_line(
        [o.workload.depth for o in row],
        [o.latency_ns for o in row if o.latency_ns is not None],
        m.workload.depth * depth,
        DEPTH,
        "two values of --depth",
    )


def on_line(
    values: Sequence[float],
    latency: Sequence[Estimate],
    at: float,
    formula: str,
    need: str,
) -> Answer | Refused:
    """Return the latency at a value of an axis, from the line through the measured ones.

    Args:
        values: of the axis, ascending.
        latency: of each, ns.
        at: where to.
        formula: which one it is.
        need: what to measure where there are fewer than two values.
    """
    if len(set(values)) < 2:
        return Refused(formula=formula, reason=f"a line needs two measured points; give {need}")
    if at > formulas.REACH * max(values) or at < min(values) / formulas.REACH:
        reason = (
            f"{at:g} is more than {formulas.REACH:g} times beyond what was measured "
            f"({min(values):g} to {max(values):g}); measure nearer to it"
        )
        return Refused(formula=formula, reason=reason)
    found = formulas.along_line(values, latency, at, formula)
    if found.low <= 0:
        return Refused(formula=formula, reason="its interval reaches zero; measure it for longer")
    return Answer(formula=formula, latency=found)
