"""Made sessions of the paper's studies: every planned point at a latency that a function gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import sample_records as data

from frameworktax.records import (
    Attribution,
    Environment,
    Outcome,
    Point,
    Record,
    Subject,
)
from frameworktax.reproduce.studies import StudyFile, planned_points

SESSION = "20261120T120000-0001"
MACS = {"bert-base": 20, "albert": 20, "distilbert": 10, "mobilebert": 5, "squeezebert": 7}
"""Mega-MACs; the truth of the made models, the others 16."""


def made(
    study: StudyFile,
    latency_ns: Callable[[Point], float],
    *,
    scale: str = "small",
    session: str = SESSION,
    environment: Environment = data.ENVIRONMENT,
    lost: Mapping[str, str] | None = None,
    kernel_of_1000: Callable[[Point], int] = lambda point: 400,
    platform: str = "cpu",
    enqueue_ns: float = 0.0,
    kernel_ns: float = 0.0,
) -> list[Record]:
    """One session of a study; runtimes in ``lost`` are unavailable for the reason given."""
    records: list[Record] = [data.session(session, 12, environment=environment)]
    for planned in planned_points(study.name, scale):
        at = replace(planned, platform=platform)
        macs = MACS.get(at.workload.model, 16) * 1_000_000 * at.workload.batch
        records.append(
            Subject(
                session=session,
                point=at,
                paradigm="eager",
                parameters=1000,
                macs=macs,
                flops=2 * macs,
                operators=100,
            )
        )
        if lost and at.runtime in lost:
            records.append(
                Outcome(
                    session=session,
                    point=at.key(),
                    process=0,
                    status="unavailable",
                    reason=lost[at.runtime],
                )
            )
            continue
        latency = latency_ns(at)
        blocks = data.blocks(at, latency, session=session)
        if platform == "cpu":
            kernel = kernel_of_1000(at)
            told = data.sampled(at, latency, {"kernel": kernel, "dispatch": 900 - kernel})
            records += [*blocks, replace(told, session=session)]
            continue
        host = round(enqueue_ns)
        records += [replace(b, enqueue_ns=(host,) * len(b.latency_ns)) for b in blocks]
        records.append(
            Attribution(
                session=session,
                point=at.key(),
                process=0,
                method="device-profile",
                calls=6,
                wall_ns=round(latency * 5),
                latency_ns=round(latency),
                kernel_ns=(round(kernel_ns),) * 6,
                kernels=(60,) * 6,
                launches=(61,) * 6,
                sm_active_ns=(round(kernel_ns / 2),) * 6,
                warp_ns=(round(kernel_ns / 8),) * 6,
            )
        )
    return records
