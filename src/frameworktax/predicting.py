"""What changes would give, from Python: the what-ifs of ``frameworktax explain``.

Not called ``whatif``: a module of that name would stand in the way of ``frameworktax.whatif()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from frameworktax.analysis.whatif.request import WhatIf, check
from frameworktax.api import Results
from frameworktax.errors import UsageError
from frameworktax.explaining import Told, tell
from frameworktax.records import Prediction, Run
from frameworktax.report import html, json_document, trace_blocks


class Predictions(Sequence[Prediction]):
    """What changes would give, one ``records.Prediction`` for each change and subject.

    A refused one has no latency, and says why in ``reason``.
    """

    def __init__(self, found: Sequence[Prediction]) -> None:
        self._found = tuple(found)

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: Any) -> Any:
        return self._found[index]

    def to_json(self) -> list[dict[str, Any]]:
        """Return them as plain data, as they stand in the document of ``--json``."""
        run = json_document.dump(Run(predictions=self._found))
        data: list[dict[str, Any]] = run["predictions"]
        return data

    def __repr__(self) -> str:
        told = "; ".join(
            f"{item.lead}: {item.text}, {item.detail}"
            for item in map(trace_blocks.prediction_item, self._found)
        )
        return f"<frameworktax predictions: {told or 'none'}>"

    def _repr_html_(self) -> str:
        return html.blocks_html(trace_blocks.prediction_blocks(self._found))


def whatif(
    source: str | Path | Run | Results,
    *,
    device_speed: float | None = None,
    host_speed: float | None = None,
    graphs: bool = False,
    batch: int | None = None,
    width: float | None = None,
    depth: float | None = None,
    runtime: str | None = None,
) -> Predictions:
    """Predict what changes would give, each with its formula and the error that has shown.

    Each change is answered alone; those of the machine (the first three) also together.

    Args:
        source: what ``measure`` or ``sweep`` returned, or the path of a store, a document, a trace
            or anything else that ``explain`` takes.
        device_speed: were the device so many times as fast.
        host_speed: were the host so many times as fast.
        graphs: were captured graphs replayed.
        batch: had a call so many samples.
        width: were layers so many times as wide.
        depth: were there so many times as many layers.
        runtime: were it run by this runtime.

    Raises:
        UsageError: no change is asked for, one cannot be, or there is nothing to start from.
        TraceError: it is a trace that cannot be read.
        StoreError: it is a store or document that cannot be read.
    """
    asked = WhatIf(
        device_speed=device_speed,
        host_speed=host_speed,
        graphs=graphs,
        batch=batch,
        width=width,
        depth=depth,
        runtime=runtime,
    )
    check(asked)
    if isinstance(source, Results):  # of a trace the document has no single steps: read it again
        source = source.run if source.run.trace is None else source.store
    told = Told(source) if isinstance(source, Run) else tell(Path(source))
    if told.timeline is None and all(m.latency_ns is None for m in told.run.measurements):
        raise UsageError("nothing to predict from: no latency in it; measure first")
    return Predictions(told.predict(asked))
