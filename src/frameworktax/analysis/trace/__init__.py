"""A profiler's trace as a document."""
