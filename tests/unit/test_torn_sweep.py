"""A shard that is cut anywhere: the sweep resumes, every point is there once, none invented."""

from collections import Counter

from test_sweep_run import STUDY, FakeExecutor, sweep

from frameworktax import store
from frameworktax.records import Block

STEP = 293
"""Bytes between cuts: no divisor of a line's length, so that cuts fall everywhere in lines."""


def test_a_sweep_resumes_wherever_a_shard_is_cut(tmp_path):
    sweep(tmp_path, FakeExecutor(tmp_path)).run()
    whole = {path: path.read_bytes() for path in sorted(tmp_path.glob("*.jsonl"))}
    cut, text = list(whole.items())[-1]
    measured_anew = set()
    for at in range(0, len(text), STEP):
        for path in tmp_path.glob("*.jsonl"):
            path.unlink()
        for path, kept in whole.items():
            path.write_bytes(text[:at] if path == cut else kept)
        executor = FakeExecutor(tmp_path)
        results = sweep(tmp_path, executor).run()
        found = Counter((m.workload.model, m.workload.batch) for m in results)
        grid = STUDY["grid"]
        assert found == Counter((m, b) for m in grid["models"] for b in grid["batch"])
        assert all(m.status == "ok" for m in results)
        blocks = [r for r in store.read(tmp_path)[0] if isinstance(r, Block)]
        names = [(b.session, b.point, b.process, b.round) for b in blocks]
        assert len(names) == len(set(names))
        measured_anew.add(sum(len(job.points) for job in executor.jobs))
    assert measured_anew >= {1, 2}, "cuts must cost one point, or both, of the session"
