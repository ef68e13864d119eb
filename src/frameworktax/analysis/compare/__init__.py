"""Did it change? Pairing, the rule, the verdict."""
