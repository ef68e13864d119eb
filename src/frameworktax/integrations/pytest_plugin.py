"""A pytest plugin: the fixture ``frameworktax`` checks a model's tax and its latency's baseline.

    def test_tax(frameworktax):
        frameworktax.assert_tax(model, inputs, below=0.5)

    def test_latency(frameworktax):
        frameworktax.assert_latency_within(model, inputs, gate=0.10)

    def test_deployment(frameworktax):
        frameworktax.assert_deployment("deploy", gate=0.10)

Loaded by every pytest run of an environment that has the package, so nothing of the project is
imported before a test asks for it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from frameworktax.analysis.compare.comparison import Change, Comparison
    from frameworktax.analysis.where import LayerTax
    from frameworktax.records import Measurement, Run

DEFAULT_FILE = "frameworktax-baselines.json"
BUDGET_S = 30.0
"""Of a check, where it has no ``time_budget``."""


class InconclusiveWarning(UserWarning):
    """A test passed because nothing was proven against it, and nothing for it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, in a group of their own."""
    group = parser.getgroup("frameworktax")
    group.addoption(
        "--frameworktax-update", action="store_true", help="write baselines instead of comparing"
    )
    parser.addini("frameworktax_baselines", "file of baselines", default=DEFAULT_FILE)
    parser.addini(
        "frameworktax_inconclusive",
        "what to do where noise leaves a check open: warn, skip, xfail or fail",
        default="warn",
    )


@pytest.fixture(name="frameworktax")
def _frameworktax(request: pytest.FixtureRequest, tmp_path: Path) -> Checks:
    """Checks of one test; measures in processes of its own, in the test's temporary folder."""
    return Checks(request, tmp_path / "frameworktax")


class Checks:
    """What the fixture offers.

    A check fails only on what is proven: an interval wholly beyond the bound, a regression that
    ``frameworktax compare --gate`` would fail. Where noise leaves it open the test passes with an
    ``InconclusiveWarning``, unless ``frameworktax_inconclusive`` says otherwise.
    """

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        __tracebackhide__ = True
        self._request = request
        self._config = request.config
        self._inconclusive = str(self._config.getini("frameworktax_inconclusive"))
        if self._inconclusive not in WAYS:
            _fail(f"frameworktax_inconclusive '{self._inconclusive}'; choose {', '.join(WAYS)}")
        self._folder = folder
        self._sessions = 0
        self._checked: set[tuple[str, str]] = set()
        self._measured: Run | None = None

    def measure(
        self,
        model: Any,
        inputs: Any = None,
        *,
        runtime: str = "eager",
        batch: int = 1,
        **options: Any,
    ) -> Run:
        """Measure one point and return the document; ``options`` are those of ``measure``."""
        from frameworktax.api import measure
        from frameworktax.errors import FrameworktaxError

        self._sessions += 1
        options.setdefault("time_budget", BUDGET_S)
        options.setdefault("store", self._folder / str(self._sessions))
        try:
            results = measure(model, inputs, runtimes=[runtime], batch=batch, **options)
        except FrameworktaxError as error:
            _fail(str(error))
        self._measured = results.run
        return results.run

    def layer(self, path: str) -> LayerTax:
        """Return what a layer of the model measured last pays, those inside it included.

            frameworktax.assert_tax(model, inputs, below=0.9)
            assert frameworktax.layer("encoder").tax_share < 0.5

        Args:
            path: as ``named_modules`` has it.
        """
        __tracebackhide__ = True
        from frameworktax.analysis.where import layer_tax
        from frameworktax.errors import UsageError

        run = self._measured
        point = next((m for m in run.measurements if m.layers), None) if run else None
        if point is None:
            _fail(
                "no layers were measured; call frameworktax.measure(model, inputs, by='module') "
                "first, with runtime='eager' or 'inference-mode'"
            )
        try:
            return layer_tax(point.layers, path)
        except UsageError as error:
            _fail(str(error))

    def assert_tax(
        self,
        model: Any,
        inputs: Any = None,
        *,
        below: float,
        runtime: str = "eager",
        **options: Any,
    ) -> Measurement:
        """Hold the tax share of a model below a fraction.

        Args:
            model: a live module, a name, or ``file.py:function``.
            inputs: example inputs of a live module.
            below: fraction; fails if the whole interval of the tax share lies above it.
            runtime: in which it is measured.
            options: of ``measure``; ``batch`` is one number.

        Returns:
            The measurement, for checks of your own.
        """
        __tracebackhide__ = True
        if not 0 < below <= 1:
            _fail(f"below={below:g} is no share; give a fraction, as in below=0.5")
        point = _point(self.measure(model, inputs, runtime=runtime, **options), runtime)
        share = point.tax_share
        if share is None:
            self._open("the tax was not measured; frameworktax doctor says what sampling lacks")
            return point
        said = f"tax share {share.value:.3f} ({share.low:.3f} to {share.high:.3f})"
        if share.low > below:
            _fail(f"{point.workload.model} in {runtime}: {said} is above {below:g}")
        if share.high > below:
            self._open(f"{said} is on both sides of {below:g}; give it a longer time_budget")
        return point

    def assert_latency_within(
        self,
        model: Any,
        inputs: Any = None,
        *,
        gate: float = 0.05,
        name: str = "",
        metric: str = "latency",
        runtime: str = "eager",
        across: bool = False,
        **options: Any,
    ) -> Change | None:
        """Compare with the baseline of this test, kept in a file of the repository.

        Args:
            model: a live module, a name, or ``file.py:function``.
            inputs: example inputs of a live module.
            gate: a proven regression beyond this fraction fails.
            name: distinguishes several checks of one test.
            metric: latency, tax or kernel.
            runtime: in which it is measured.
            across: compare with a baseline of another machine.
            options: of ``measure``; ``batch`` is one number.

        Returns:
            The comparison's point; None where the baseline was written or none is there. That
            fails where the variable ``CI`` is set.
        """
        __tracebackhide__ = True
        from dataclasses import replace

        from frameworktax.comparing import baseline, check, compare
        from frameworktax.report.json_document import parse

        key = _name_of(self._request.node) + (f"[{name}]" if name else "")
        if (key, metric) in self._checked:  # both would have one baseline: the last one's
            _fail(f"a second check of {key}; give each a name, as in name='batch-8'")
        self._checked.add((key, metric))
        path = self._config.rootpath / str(self._config.getini("frameworktax_baselines"))
        updates = self._config.getoption("--frameworktax-update")
        reason = f"{path.name} has no baseline of it; run with --frameworktax-update"
        with self._refusals():  # what is damaged or missing is known before minutes of measuring
            check(gate, metric)
            known = _read(path).get(key)
            before = parse(known, str(path)) if known is not None and not updates else None
        is_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
        if before is None and not updates and is_ci:
            _fail(reason)  # a warning goes unread there
        run = self.measure(model, inputs, runtime=runtime, **options)
        run = replace(run, measurements=(_point(run, runtime),))
        with self._refusals():
            if updates:
                _write(path, key, baseline(run))
                return None
            if before is None:
                self._open(reason)
                return None
            found = compare(before, run, gate=gate, metric=metric, across=across).comparison
            self._judge(found, f"{metric} of {key}", gate)
            return found.points[0]
        return None

    def assert_deployment(
        self, folder: str | Path, *, gate: float = 0.05, across: bool = False, **options: Any
    ) -> Comparison | None:
        """Hold a deployment of ``frameworktax optimize`` to its manifest.

        It fails where the deployment would not load here (a changed file, other versions), and
        where the latency of a shape, measured again, is proven worse than its proof's.

        Args:
            folder: of the deployment.
            gate: a proven regression beyond this fraction fails.
            across: compare with a proof of another machine.
            options: of ``comparing.measure_again``: time_budget, until, processes.

        Returns:
            The comparison; None where it is left open, the proof being another machine's.
        """
        __tracebackhide__ = True
        from frameworktax.comparing import measure_again

        options.setdefault("time_budget", BUDGET_S)
        with self._refusals():
            found = measure_again(Path(folder), gate=gate, across=across, **options).comparison
            self._judge(found, f"latency of {folder}", gate)
            return found
        return None

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Fail for an error; a comparison with another machine is left open."""
        __tracebackhide__ = True
        from frameworktax.errors import FrameworktaxError

        try:
            yield
        except FrameworktaxError as error:
            if "--across" not in str(error):
                _fail(str(error))
            self._open(str(error).replace("--across", "across=True"))

    def _judge(self, found: Comparison, what: str, gate: float) -> None:
        """Fail for the first point with a proven regression; leave open what noise does."""
        __tracebackhide__ = True
        for change in sorted(found.points, key=lambda change: change.gate != "regressed"):
            said = f"{what}: {change.reason}"
            if change.gate == "regressed":
                _fail(f"{said}; beyond the gate of {gate:g}")
            if change.gate == "undecided":
                self._open(said)
        for point in found.unpaired_before:
            self._open(f"{what}: {point} was not measured")

    def _open(self, reason: str) -> None:
        """Do what the settings say about a check that noise leaves open."""
        __tracebackhide__ = True
        if way := WAYS[self._inconclusive]:
            way(reason)
        self._request.node.warn(InconclusiveWarning(reason))


def _fail(reason: str) -> NoReturn:
    __tracebackhide__ = True
    raise pytest.fail.Exception(reason, pytrace=False) from None  # the error says no more


WAYS: dict[str, Callable[[str], Any] | None] = {
    "warn": None,
    "skip": pytest.skip,
    "xfail": pytest.xfail,
    "fail": _fail,
}
"""What is done about a check that noise leaves open, by ``frameworktax_inconclusive``."""


def _name_of(test: pytest.Item) -> str:
    """Return a test's id without the ``@group`` that ``pytest -n 2 --dist loadgroup`` may add."""
    before, name, _ = test.nodeid.rpartition(test.name)
    return before + name


def _point(run: Run, runtime: str) -> Measurement:
    points = [m for m in run.measurements if m.runtime == runtime]
    if len(points) > 1:
        _fail(f"{len(points)} points are no check of one; give one number, as in batch=8")
    found = points[0] if points else None
    if found is None or found.status != "ok":
        _fail(f"{runtime} was not measured: {found.reason if found else 'no reason was recorded'}")
    return found


def _read(path: Path) -> dict[str, Any]:
    """Return key → document of a file of baselines; empty where there is none.

    Raises:
        StoreError: it is something else, or of another version.
    """
    from frameworktax.errors import StoreError

    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is no file of baselines: {error}") from error
    match data:
        case {"schema": "frameworktax.baselines", "version": 1, "baselines": dict(found)}:
            return found
    raise StoreError(f"{path} is no file of baselines of this version; name another, or remove it")


def _write(path: Path, key: str, run: Run) -> None:
    """Put one baseline into the file; the others stay as they are, those of other processes too."""
    from frameworktax.errors import UsageError
    from frameworktax.host.cache import atomic_path, locked
    from frameworktax.report.json_document import dump

    head = '{"schema": "frameworktax.baselines", "version": 1, "baselines": {\n'
    try:
        # pytest-xdist's workers write at once
        with locked(path.parent, fcntl.LOCK_EX):
            known = {**_read(path), key: dump(run)}
            rows = [
                f"{json.dumps(name)}: {json.dumps(known[name], allow_nan=False)}"
                for name in sorted(known)
            ]
            with atomic_path(path) as partial:
                partial.write_text(head + ",\n".join(rows) + "\n}}\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}; name another: frameworktax_baselines"
        ) from error
