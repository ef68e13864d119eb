"""What other tools wrote: latency tables and benchmark reports, read as data."""
