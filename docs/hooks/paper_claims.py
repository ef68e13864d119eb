"""What the paper asserts, as a page, from the data that `frameworktax reproduce` judges by."""

from __future__ import annotations

HEAD = """# What the paper asserts

From Fernandez et al., *The Framework Tax* (EMNLP 2023, arXiv 2302.06117). These are the paper's
claims and the paper's numbers; none was measured here. How each is held against your own
measurements: [the paper on your machine](../reproduce.md).
"""


def pages() -> dict[str, str]:
    """Return the page under its name."""
    from frameworktax.reproduce.paper import claims

    rows = [("claim", "where", "what", "the paper's number"), ("---",) * 4]
    rows += [(name, c["where"], c["text"], c["number"]) for name, c in claims().items()]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return {"explanation/paper-claims.md": f"{HEAD}\n{table}\n"}
