"""Where a watch's numbers go: the official clients of Prometheus and OpenTelemetry.

Both give a scraper the same names: OpenTelemetry's ``frameworktax.call.duration`` in ``s`` is
Prometheus's ``frameworktax_call_duration_seconds``, a counter ends in ``_total``, and the gauge
``frameworktax.tax`` in ``1`` is ``frameworktax_tax_ratio``.

Source: prometheus.io/docs/practices/naming; the OpenTelemetry specification, "Prometheus and
OpenMetrics Compatibility".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol

from frameworktax.errors import needs

BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 10.0),
)
"""Upper ends of the latency buckets."""

DURATION = "Latency of a call of the model, until it returns."
ERRORS = "Calls of the model that ended with an exception."
SAMPLED = (
    "Time of sampled calls by line of the breakdown; the framework tax is all lines but kernel."
)
RATIO = "Share of the framework tax in the last 400 or more samples."
FAULTS = "Faults of the watch itself, by stage; the calls were not affected."
INFO = "1 for the sampler in use, with the reason why there is none."


class Labels(NamedTuple):
    """What a call is known by."""

    model: str
    call: str
    batch: str


class Exporter(Protocol):
    """Takes the numbers of a watch, in the watch's own thread; what it raises is counted."""

    def called(self, labels: Labels, seconds: float) -> None:
        """Record a call."""

    def failed(self, labels: Labels) -> None:
        """Record a call that ended with an exception."""

    def sampled(self, labels: Labels, part: str, seconds: float) -> None:
        """Add time of sampled calls to a line of the breakdown."""

    def ratio(self, labels: Labels, tax: float) -> None:
        """Set the share of the tax in the last window."""

    def fault(self, model: str, stage: str, count: int) -> None:
        """Add faults of the watch."""

    def state(self, model: str, sampler: str, reason: str, *, now: bool) -> None:
        """Say whether this is how the model is sampled now."""


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
        where: Any = {"registry": REGISTRY if registry is None else registry}
        each = Labels._fields
        self._duration = Histogram(
            "frameworktax_call_duration_seconds", DURATION, each, buckets=BOUNDS_S, **where
        )
        self._errors = Counter("frameworktax_call_errors_total", ERRORS, each, **where)
        self._sampled = Counter(
            "frameworktax_sampled_time_seconds_total", SAMPLED, (*each, "part"), **where
        )
        newest: Any = {"multiprocess_mode": "livemostrecent", **where}
        self._ratio = Gauge("frameworktax_tax_ratio", RATIO, each, **newest)
        self._faults = Counter(
            "frameworktax_watch_faults_total", FAULTS, ("model", "stage"), **where
        )
        self._info = Gauge(
            "frameworktax_watch_info", INFO, ("model", "sampler", "reason"), **newest
        )
        self._durations: dict[Labels, Callable[[float], None]] = {}

    def called(self, labels: Labels, seconds: float) -> None:
        """Record a call."""
        observe = self._durations.get(labels)
        if observe is None:
            observe = self._durations[labels] = self._duration.labels(*labels).observe
        observe(seconds)

    def failed(self, labels: Labels) -> None:
        """Record a call that ended with an exception."""
        self._errors.labels(*labels).inc()

    def sampled(self, labels: Labels, part: str, seconds: float) -> None:
        """Add time of sampled calls to a line of the breakdown."""
        self._sampled.labels(*labels, part).inc(seconds)

    def ratio(self, labels: Labels, tax: float) -> None:
        """Set the share of the tax in the last window."""
        self._ratio.labels(*labels).set(tax)

    def fault(self, model: str, stage: str, count: int) -> None:
        """Add faults of the watch."""
        self._faults.labels(model, stage).inc(count)

    def state(self, model: str, sampler: str, reason: str, *, now: bool) -> None:
        """Say whether this is how the model is sampled now."""
        self._info.labels(model, sampler, reason).set(int(now))


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
        self._duration = meter.create_histogram(
            "frameworktax.call.duration",
            "s",
            DURATION,
            explicit_bucket_boundaries_advisory=BOUNDS_S,
        )
        self._errors = meter.create_counter("frameworktax.call.errors", "{call}", ERRORS)
        self._sampled = meter.create_counter("frameworktax.sampled.time", "s", SAMPLED)
        self._ratio = meter.create_gauge("frameworktax.tax", "1", RATIO)
        self._faults = meter.create_counter("frameworktax.watch.faults", "{fault}", FAULTS)
        self._info = meter.create_gauge("frameworktax.watch.info", "", INFO)

    def called(self, labels: Labels, seconds: float) -> None:
        """Record a call."""
        self._duration.record(seconds, labels._asdict())

    def failed(self, labels: Labels) -> None:
        """Record a call that ended with an exception."""
        self._errors.add(1, labels._asdict())

    def sampled(self, labels: Labels, part: str, seconds: float) -> None:
        """Add time of sampled calls to a line of the breakdown."""
        self._sampled.add(seconds, {**labels._asdict(), "part": part})

    def ratio(self, labels: Labels, tax: float) -> None:
        """Set the share of the tax in the last window."""
        self._ratio.set(tax, labels._asdict())

    def fault(self, model: str, stage: str, count: int) -> None:
        """Add faults of the watch."""
        self._faults.add(count, {"model": model, "stage": stage})

    def state(self, model: str, sampler: str, reason: str, *, now: bool) -> None:
        """Say whether this is how the model is sampled now."""
        self._info.set(int(now), {"model": model, "sampler": sampler, "reason": reason})


EXPORTERS: Mapping[str, Callable[[], Exporter]] = {
    # Metrics have one owner in a process: every watch that names an exporter shares it.
    "prometheus": cache(Prometheus),
    "opentelemetry": cache(OpenTelemetry),
}
