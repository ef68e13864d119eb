"""What a person could run to make this machine fitter, as lines for a shell; none is run here."""

from __future__ import annotations

from collections.abc import Sequence

from frameworktax.host.checks import Check


def hints(checks: Sequence[Check]) -> list[str]:
    """Return lines for a shell: each command that would help, its findings as comments above it.

    Nothing is run. A finding that no single command mends is a comment alone, with its remedy.
    """
    findings: dict[str, list[str]] = {}
    for check in checks:
        if check.status != "ok":
            said = f"# {check.code}: {check.text}"
            key = check.command or f"# {check.remedy}"
            findings.setdefault(key, []).append(" ".join(said.split()))
    return [line for command, said in findings.items() for line in (*said, command)]
