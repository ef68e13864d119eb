"""The serving example: a real server under load on loopback, scraped as Prometheus would."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from frameworktax.integrations.watch import SAMPLE

ROOT = Path(__file__).parents[2] / "examples" / "serving"
sys.path.insert(0, str(ROOT))
from walkthrough import scrape, send

REQUESTS = 100


@pytest.fixture(scope="module")
def scraped():
    """Return what /metrics says after a load, and how the server ended."""
    words = [sys.executable, str(ROOT / "server.py"), "--port", "0", "--sample", "1"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().strip()
        answered, _ = send(url, None, REQUESTS, connections=2, seconds=300, sizes=(1, 4))
        found = scrape(url)
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=600)
    finally:
        server.kill()
    return answered, found, server.returncode


def test_every_request_is_counted_under_its_batch_size(scraped):
    answered, found, status = scraped
    assert len(answered) == REQUESTS
    counts = {labels["batch"]: n for labels, n in found["frameworktax_call_duration_seconds_count"]}
    assert sum(counts.values()) == REQUESTS
    assert set(counts) == {"1", "3-4"}
    assert {labels["model"] for labels, _ in found["frameworktax_watch_info"]} == {"encoder"}
    assert not any(n for _, n in found.get("frameworktax_watch_faults_total", []))
    assert status in (0, -signal.SIGINT)  # uvicorn raises the signal again after its shutdown


def test_dashboard_and_rules_name_metrics_and_labels_that_are_scraped(scraped):
    _, found, _ = scraped
    yaml = pytest.importorskip("yaml", reason="pip install 'frameworktax[docs]'")
    rules = yaml.safe_load((ROOT / "alerts.yml").read_text())["groups"][0]["rules"]
    dashboard = json.loads((ROOT / "dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [rule["expr"] for rule in rules]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    have = {*found, *recorded, "frameworktax_call_errors_total", "frameworktax_watch_faults_total"}
    have.add("frameworktax_tax_ratio")  # these three only once there is something to say
    assert len(queries) >= 10
    for query in queries:
        assert set(re.findall(r"frameworktax[\w:]+", query)) <= have, query
        by = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([\w, ]+)\)", query))))
        assert by <= {"model", "call", "batch", "part", "stage", "le"}, query
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_the_server_samples_as_many_calls_as_a_watch_does():
    (default,) = re.findall(
        r'"--sample", type=float, default=([\d.]+)', (ROOT / "server.py").read_text()
    )
    assert float(default) == SAMPLE
