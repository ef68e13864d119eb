"""Other tools: pytest, trackers, readers of their files."""
