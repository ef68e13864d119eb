"""What points are called, and what they are grouped by."""

import hashlib
import json
from dataclasses import asdict, fields, replace

import pytest

from frameworktax.records import Point, Workload, distinct_name, point_name

PLAIN = Point(workload=Workload(model="bert-base", batch=8), runtime="eager")
FULL = Point(
    workload=Workload(
        model="llama-tiny",
        batch=2,
        length=128,
        precision="float16",
        width=2.0,
        input="ragged",
        length_mean=40,
        length_sd=10,
        phase="generate",
        new_tokens=16,
        kv_cache="static",
    ),
    runtime="inductor",
    platform="cuda:0",
    threads=4,
)


def test_a_name_leaves_out_what_is_as_by_default():
    assert point_name(PLAIN) == "bert-base, eager, batch 8"
    assert point_name(PLAIN, runtime=False, batch=False, defaults=True) == (
        "bert-base, float32, cpu, 1 thread"
    )
    assert point_name(PLAIN, model=False, runtime=False) == "batch 8"


def test_a_name_has_all_that_sets_a_point_apart():
    assert point_name(FULL) == (
        "llama-tiny, inductor, batch 2, length 128, width × 2, float16, ragged 40 ± 10 tokens, "
        "generate 16 tokens (static cache), cuda:0, 4 threads"
    )


def test_points_are_told_apart_by_what_they_do_not_share():
    one = Point(workload=Workload(model="mlp", length=32), runtime="eager")
    wide = replace(one, workload=replace(one.workload, width=0.5))
    other = replace(one, runtime="null", workload=replace(one.workload, batch=4))
    assert distinct_name(one, [one]) == "eager"
    assert distinct_name(one, [one, other]) == "eager"
    assert distinct_name(wide, [one, wide, other]) == "eager, width × 0.5"
    assert distinct_name(wide, [one, wide]) == "width × 0.5"
    assert distinct_name(one, [one, wide]) == "eager"


def test_a_family_is_all_runtimes_and_batches():
    other = replace(PLAIN, runtime="inductor", workload=replace(PLAIN.workload, batch=1))
    assert PLAIN.family() == other.family()
    assert PLAIN.without_batch() != other.without_batch()
    assert PLAIN.family() != replace(PLAIN, threads=2).family()


@pytest.mark.parametrize("point", [PLAIN, FULL])
def test_a_key_is_of_the_fields_as_json_later_ones_only_where_they_are_set(point):
    later = {f.name: f.default for f in fields(Workload)[11:]}
    data = asdict(point)
    data["workload"] = {
        name: value
        for name, value in data["workload"].items()
        if name not in later or value != later[name]
    }
    text = json.dumps(data, sort_keys=True).encode()
    assert point.key() == hashlib.blake2b(text, digest_size=8).hexdigest()
