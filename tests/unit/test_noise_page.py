"""Every finding of doctor stands on the page about noise, as it is printed, above its remedy."""

import ast
import re
import sys
from pathlib import Path

import pytest
from test_host import CPU, GIB, MEMINFO, findings, tree  # noqa: F401 - a fixture

from frameworktax.host import checks, machine

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "noise.md"
ENTRY = re.compile(r"^\*\*`([\w-]+)`\*\*\n> (.+)\n\n((?:.+\n)+)", re.MULTILINE)
ENTRIES = ENTRY.findall(PAGE.read_text())


def flat(text):
    return " ".join(text.replace("`", "").split()).lower()


@pytest.fixture
def lines(monkeypatch):
    """Return the lines of the source from which findings came."""
    seen = set()
    for name in ("Check", "_warning"):
        real = getattr(checks, name)

        def noted(*args, real=real, **named):
            seen.add(sys._getframe(1).f_lineno)
            return real(*args, **named)

        monkeypatch.setattr(checks, name, noted)
    return seen


@pytest.fixture
def made(tree, lines):  # noqa: F811 - that fixture
    """Return every finding that is not ok, of two machines on which everything is wrong."""
    gpu = {
        "index": 0, "name": "G", "memory_mib": 1, "driver": "5", "persistence_mode": "Disabled",
        "mig_mode": "Enabled", "compute_mode": "Prohibited", "pci_bus_id": "00000000:17:00.0",
    }  # fmt: skip
    groups = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}
    low = {"proc/meminfo": "MemAvailable: 1048576 kB\n"}
    no_turbo = f"{CPU}/intel_pstate/no_turbo"
    kernel = {
        checks.HUGE_PAGES: "[always] madvise never\n",
        "proc/sys/kernel/yama/ptrace_scope": "1\n",
    }
    card = {
        "sys/bus/pci/devices/0000:17:00.0/numa_node": "1",
        "sys/devices/system/node/node1/cpulist": "8-15\n",
        checks.MPS: "",
    }
    intel = tree({**groups, **low, **kernel, **card, no_turbo: "0\n"})
    found = findings(
        intel, refused="not installed", load=machine.Load(0.3, 0.05),
        which=lambda name: None, affinity=(0,), governor="powersave", turbo=True,
        threads_per_core=2, libraries={}, gpus=(gpu,),
        processes=lambda: 2,
    )  # fmt: skip
    (intel / no_turbo).unlink()
    memory = {"memory.max": str(GIB), "memory.current": "0"}
    amd = tree(
        {
            **MEMINFO,
            "dev/kfd": "",
            **{f"sys/fs/cgroup/{name}": text for name, text in memory.items()},
        }
    )
    others = findings(amd, load=None, turbo=True)
    return [c for c in (*found.values(), *others.values()) if c.status != "ok"]


def test_the_machines_show_everything_that_can_be_found(made, lines):
    """A check that is new must be made here, and so be told on the page."""
    source = ast.parse(Path(checks.__file__).read_text())
    calls = [n for n in ast.walk(source) if isinstance(n, ast.Call)]
    bad = [
        range(call.lineno, call.end_lineno + 1)
        for call in calls
        if getattr(call.func, "id", "") == "_warning"
        or (getattr(call.func, "id", "") == "Check" and call.args[1].value == "missing")
    ]
    assert len(bad) > 10
    assert [span for span in bad if not lines & set(span)] == []


def test_each_finding_is_quoted_above_its_remedy(made):
    used = set()
    for check in made:
        library = check.code.startswith("library-")
        code = "library-NAME" if library else check.code
        remedy = re.sub(r"\[\w+\]", "[EXTRA]", check.remedy) if library else check.remedy
        fits = [
            (i, below)
            for i, (told, quote, below) in enumerate(ENTRIES)
            if told == code
            and re.fullmatch("[^,]*".join(map(re.escape, quote.split("…"))), check.text)
        ]
        assert len(fits) == 1, check
        place, below = fits[0]
        if "a cgroup allows" not in check.text:  # it says: the same
            assert flat(remedy) in flat(below), check
        used.add(place)
    assert used == set(range(len(ENTRIES))), "the page quotes what nothing says"
