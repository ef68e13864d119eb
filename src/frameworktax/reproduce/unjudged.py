"""What a rule raises that cannot be applied."""

from __future__ import annotations


class Unjudged(Exception):  # noqa: N818 - no fault: a reason, and part of every result
    """A number is missing; the text says which, and why."""
