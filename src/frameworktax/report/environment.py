"""Where a run was made, as (name, value) in the order they are shown."""

from __future__ import annotations

from frameworktax.records import Environment


def facts(environment: Environment) -> list[tuple[str, str]]:
    """Return everything that is known of an environment, one GPU after the other at the end."""
    e = environment
    told: list[tuple[str, object]] = [
        ("host", e.host),
        ("system", e.system),
        ("processor", e.cpu),
        ("cores", f"{e.cores}, {e.threads_per_core or 'unknown'} threads a core"),
        ("memory", f"{e.memory_bytes / 2**30:.1f} GiB" if e.memory_bytes else None),
        ("load at the start", e.load_1min),
        ("governor", e.governor),
        ("frequency", f"{e.frequency_mhz:.0f} MHz" if e.frequency_mhz else None),
        ("turbo", e.turbo),
        ("virtualisation", e.virtualization),
        ("affinity", ", ".join(map(str, e.affinity)) or None),
        ("sampler", e.sampler),
        ("python", e.python),
        ("libraries", ", ".join(f"{name} {v}" for name, v in e.libraries.items()) or None),
        *(("GPU", ", ".join(f"{k} {v}" for k, v in gpu.items())) for gpu in e.gpus),
    ]
    return [(name, str(value)) for name, value in told if value is not None]
