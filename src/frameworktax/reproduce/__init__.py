"""The paper's studies: its figures, tables and claims on this machine, its numbers beside ours.

A study is a TOML file under ``studies``; the paper's numbers are data under ``numbers``; verdicts
are computed from intervals by the rules that the study files name.
"""
