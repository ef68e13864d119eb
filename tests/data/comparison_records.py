"""Two sessions of a few points, the second changed by known factors."""

from __future__ import annotations

from dataclasses import replace

import sample_records as data

from frameworktax.records import Calibration, Environment, Outcome, Record, Subject

write = data.write
OLD, NEW = "20261120T100000-aaaa", "20261121T100000-bbbb"
LATENCY_NS = {"eager": 4_400_000, "inference-mode": 3_900_000, "torchscript-frozen": 2_900_000}
CALIBRATOR_NS = 370_000


def session(
    name: str = OLD,
    *,
    factors: dict[str, float] | None = None,
    host: float = 1.0,
    environment: Environment = data.ENVIRONMENT,
    batches: tuple[int, ...] = (1,),
    lost: tuple[str, ...] = (),
    model: str = data.MODEL,
    sampled: bool = True,
) -> list[Record]:
    """One session; a runtime's latency is multiplied by its factor, everything by ``host``."""
    made: list[Record] = [data.session(name, environment=environment)]
    made += [
        Calibration(session=name, round=r, latency_ns=(round(CALIBRATOR_NS * host * f),))
        for r, f in enumerate(data.ROUND_FACTORS)
    ]
    for runtime, base_ns in LATENCY_NS.items():
        for batch in batches:
            at = data.point(runtime, batch, model=model)
            made.append(
                Subject(session=name, point=at, paradigm="eager", operators=480, flops=1000)
            )
            if runtime in lost:
                end = Outcome(
                    session=name, point=at.key(), process=0, status="crashed", reason="signal 11"
                )
                made.append(end)
                continue
            latency_ns = base_ns * host * (factors or {}).get(runtime, 1.0)
            made += data.blocks(at, latency_ns, session=name)
            if sampled:
                told = data.sampled(at, latency_ns, data.SHARES[runtime])
                made.append(replace(told, session=name))
    return made
