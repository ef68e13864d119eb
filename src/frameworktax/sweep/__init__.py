"""A study carried out: its points, which of them the store holds, in what order, where.

An executor measures, this decides what and when.
"""
