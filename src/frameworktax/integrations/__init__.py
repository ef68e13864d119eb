"""Other tools: pytest, notebooks, trackers, metrics in production, readers of their files."""
