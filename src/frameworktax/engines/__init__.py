"""Where measuring processes run: one file an engine."""
