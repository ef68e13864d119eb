"""Run by a peer's own Python: read a trace as the peer's README says, print its device time.

python traces_driver.py hta|tracelens FILE
"""

import contextlib
import json
import sys
import time
from pathlib import Path


def hta(path: Path) -> float:
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
    table = analysis.get_temporal_breakdown(visualize=False)
    return float((table["kernel_time(us)"] - table["idle_time(us)"]).iloc[0]) * 1e3


def tracelens(path: Path) -> float:
    from TraceLens import TreePerfAnalyzer

    analyzer = TreePerfAnalyzer.from_file(str(path))
    table = analyzer.get_df_gpu_timeline().set_index("type")
    analyzer.get_df_kernel_launchers()
    return float(table.loc["busy_time", "time ms"]) * 1e6


def imported(name: str) -> float:
    begin = time.perf_counter()
    __import__({"hta": "hta.trace_analysis", "tracelens": "TraceLens"}[name])
    return time.perf_counter() - begin


if __name__ == "__main__":
    peer, file = sys.argv[1], Path(sys.argv[2]).resolve()
    with contextlib.redirect_stdout(sys.stderr):
        import_s = imported(peer)
        begin = time.perf_counter()
        busy_ns = {"hta": hta, "tracelens": tracelens}[peer](file)
        work_s = time.perf_counter() - begin
    print(json.dumps({"import_s": import_s, "work_s": work_s, "busy_ns": busy_ns}))
