"""Recorded timelines: readers and interval arithmetic, used by both wings."""
