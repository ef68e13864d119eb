"""Which batch keeps up with the frames, and answers in time?

A frame waits until its batch is full, then for the batch to be computed. While batches are computed
faster than they fill, nothing queues up, and the first frame of a batch waits longest.
"""

import argparse

import frameworktax as ft


def main() -> None:
    """Print what each measured batch can do."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", help="a folder that `frameworktax sweep` made")
    parser.add_argument("model", help="one that was measured there")
    parser.add_argument("--rate", type=float, required=True, help="frames a second that come in")
    parser.add_argument("--within", type=float, required=True, help="ms after which it is too late")
    asked = parser.parse_args()
    results = ft.explain(asked.store)
    print(f"{'runtime':20}{'batch':>6}{'call, ms':>10}{'frames/s':>10}{'answer, ms':>12}")
    for m in results:
        if m.latency_ns is None or m.workload.model != asked.model or m.runtime == "null":
            continue
        call_s = m.latency_ns.high / 1e9  # the slow end of the interval: a promise is to be kept
        batch = m.workload.batch
        frames = batch / call_s
        answer_ms = 1e3 * ((batch - 1) / asked.rate + call_s)
        fits = "fits" if frames > asked.rate and answer_ms < asked.within else ""
        row = f"{m.runtime:20}{batch:6}{1e3 * call_s:10.2f}{frames:10.0f}{answer_ms:12.1f}  {fits}"
        print(row.rstrip())
    for curve in results.run.curves:
        if curve.model == asked.model and curve.free_batch is not None:
            print(f"{curve.runtime}: free up to batch {curve.free_batch.low:g}")


if __name__ == "__main__":
    main()
