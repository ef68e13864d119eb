"""Where a watch's numbers go: the official clients of Prometheus and OpenTelemetry.

Both give a scraper the same names: OpenTelemetry's ``frameworktax.call.duration`` in ``s`` is
Prometheus's ``frameworktax_call_duration_seconds``, a counter ends in ``_total``, and the gauge
``frameworktax.tax`` in ``1`` is ``frameworktax_tax_ratio``.

Source: prometheus.io/docs/practices/naming; the OpenTelemetry specification, "Prometheus and
OpenMetrics Compatibility".
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from frameworktax.errors import needs

BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 10.0),
)
"""Upper ends of the latency buckets."""
SUFFIXES = {"s": "_seconds", "1": "_ratio"}
"""Of a unit's metrics in Prometheus."""


class Metric(NamedTuple):
    """What is exported: ``kind`` is ``histogram``, ``counter`` or ``gauge``."""

    kind: str
    unit: str
    labels: Sequence[str]
    text: str


METRICS = {
    name: Metric(**fields)
    for name, fields in tomllib.loads(
        Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    ).items()
}


class Exporter(Protocol):
    """Takes the numbers of a watch, in the watch's own thread; what it raises is counted."""

    def record(self, name: str, labels: Sequence[str], value: float) -> None:
        """Observe a value of a histogram, add it to a counter, or set a gauge to it.

        Args:
            name: of one of ``METRICS``.
            labels: values of its labels, in their order.
            value: in its unit.
        """


class Prometheus:
    """Metrics of ``prometheus_client``, also in its multi-process mode.

    Args:
        registry: where they are registered, once; the package's own by default.

    Raises:
        UsageError: the package is not installed.
    """

    def __init__(self, registry: Any = None) -> None:
        with needs("prometheus-client is not installed", "prometheus"):
            from prometheus_client import REGISTRY, Counter, Gauge, Histogram
        kinds: dict[str, tuple[Any, str, dict[str, Any]]] = {
            "histogram": (Histogram, "observe", {"buckets": BOUNDS_S}),
            "counter": (Counter, "inc", {}),
            "gauge": (Gauge, "set", {"multiprocess_mode": "livemostrecent"}),
        }
        self._metrics = {}
        for name, (kind, unit, labels, text) in METRICS.items():
            made, verb, options = kinds[kind]
            full = f"frameworktax_{name.replace('.', '_')}{SUFFIXES.get(unit, '')}"
            where = REGISTRY if registry is None else registry
            self._metrics[name] = made(full, text, labels, registry=where, **options), verb
        self._children: dict[tuple[str, Sequence[str]], Callable[[float], None]] = {}

    def record(self, name: str, labels: Sequence[str], value: float) -> None:
        """Observe, add or set a value."""
        record = self._children.get((name, labels))
        if record is None:
            metric, verb = self._metrics[name]
            record = self._children[name, labels] = getattr(metric.labels(*labels), verb)
        record(value)


class OpenTelemetry:
    """Instruments of the OpenTelemetry API; the application sets up its own meter provider.

    Args:
        provider: of the meter; the global one by default.

    Raises:
        UsageError: the package is not installed.
    """

    def __init__(self, provider: Any = None) -> None:
        with needs("opentelemetry-api is not installed", "opentelemetry"):
            from opentelemetry.metrics import get_meter_provider
        from frameworktax.version import __version__

        meter = (provider or get_meter_provider()).get_meter("frameworktax", __version__)
        verbs = {"histogram": "record", "counter": "add", "gauge": "set"}
        self._record = {}
        for name, (kind, unit, _, text) in METRICS.items():
            options = (
                {"explicit_bucket_boundaries_advisory": BOUNDS_S} if kind == "histogram" else {}
            )
            make = getattr(meter, f"create_{kind}")
            made = make(f"frameworktax.{name}", unit, text, **options)
            self._record[name] = getattr(made, verbs[kind])

    def record(self, name: str, labels: Sequence[str], value: float) -> None:
        """Observe, add or set a value."""
        self._record[name](value, dict(zip(METRICS[name].labels, labels, strict=True)))


EXPORTERS: Mapping[str, Callable[[], Exporter]] = {
    # Metrics have one owner in a process: every watch that names an exporter shares it.
    "prometheus": cache(Prometheus),
    "opentelemetry": cache(OpenTelemetry),
}
