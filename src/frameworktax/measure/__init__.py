"""The measuring wing: a plan becomes records in a store."""
