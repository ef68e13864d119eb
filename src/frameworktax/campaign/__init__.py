"""A campaign carries a study out: jobs in order, budgets, what the store already holds.

``run.sweep`` is the way in. An engine measures, this decides what and when.
"""
