"""One session of a ladder whose truth is known; see ``sample_records``."""

from __future__ import annotations

from dataclasses import replace

import sample_records as data

from frameworktax.ablate.ladder import base_point, ladder
from frameworktax.records import (
    LeftOut,
    Note,
    Outcome,
    Parity,
    Subject,
)

write = data.write
BASE = base_point(data.point("eager"), attention=True)
RUNGS = ladder(BASE, images=False, processors=2)
MS = 1_000_000
LATENCY_MS = {
    "eager@autograd-unfused": 10.0,
    "eager@unfused": 8.0,
    "inference-mode@unfused": 7.0,
    "inference-mode": 6.0,
    "eager@autograd": 9.0,
    "inference-mode@malloc": 5.0,
    "eager@autograd-unfused-malloc": 9.0,
    "torchscript": 4.0,
    "torchscript@autograd-unfused": 8.0,
    "torchscript-frozen": 3.0,
    "onnxruntime@bare": 5.0,
    "onnxruntime@0": 3.5,
    "onnxruntime@1": 3.0,
}
KERNEL = {"eager@autograd-unfused": 300, "eager@unfused": 400, "torchscript": 600}


def records(*, lost: tuple[str, ...] = (), notes: tuple[Note, ...] = (), session=data.SESSION):
    """One session of the ladder; a runtime without a latency was left out."""
    made = [data.session(session)]
    points = [r.point for r in RUNGS] + [r.alone for r in RUNGS if r.alone is not None]
    for point in dict.fromkeys(points):
        latency = LATENCY_MS.get(point.runtime)
        if point.threads > 1:
            latency = None
        if latency is None:
            made.append(LeftOut(session=session, point=point, reason="no time"))
            continue
        made.append(Subject(session=session, point=point, paradigm="eager", notes=notes))
        if point.runtime in lost:
            made.append(
                Outcome(
                    session=session, point=point.key(), process=0, status="crashed",
                    reason="signal 11",
                )
            )  # fmt: skip
            continue
        made += [replace(b, session=session) for b in data.blocks(point, latency * MS)]
        parity = Parity(
            session=session, point=point.key(), reference="eager", max_abs_difference=0.0,
            max_relative_difference=0.0, tolerance=1e-4,
            within_tolerance=point.runtime != "torchscript-frozen",
        )  # fmt: skip
        made.append(parity)
        if not point.runtime.startswith("onnxruntime"):
            kernel = KERNEL.get(point.runtime, 500)
            told = data.sampled(point, latency * MS, {"kernel": kernel, "dispatch": 200})
            made.append(replace(told, session=session))
        else:
            twin = replace(point, workload=replace(point.workload, twin=True))
            made.append(Subject(session=session, point=twin, paradigm="ahead-of-time"))
            made += [replace(b, session=session) for b in data.blocks(twin, 0.2 * latency * MS)]
    return made
