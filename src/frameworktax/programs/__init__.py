"""Programs as they are: run and observed without a change to them."""
