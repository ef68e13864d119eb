"""Real sessions that do not wait between rounds: no test of theirs is about an interval's width.

Rounds of one process lie two seconds apart, which is most of what a session of a small model takes.
"""

CODE = """
from frameworktax.measure import rounds
rounds.SPACING_S = rounds.ALONE_SPACING_S = 0.02
"""
"""For the head of a program that measures."""
PROGRAM = ("-c", f"{CODE}from frameworktax.cli import main\nmain()")
"""Words for Python in the place of ``-m frameworktax``."""


def hurry(monkeypatch, templates=None) -> None:
    """Let sessions of this process not wait, and leave these templates to the next one."""
    from frameworktax.measure import rounds, session

    for name in ("SPACING_S", "ALONE_SPACING_S"):
        monkeypatch.setattr(rounds, name, 0.02)
    if templates is not None:
        monkeypatch.setattr(session, "Templates", lambda: templates)
        monkeypatch.setattr(templates, "close", lambda: None)
