"""Predictions: what a change would give, and the error each formula has shown."""
