"""A study: what to measure, in one TOML file. Data only; nothing in it is ever run from here.

Importing this package imports nothing of weight; ``load`` brings pydantic.
"""
