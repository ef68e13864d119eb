"""A recommender: dense features and 26 categorical ones, from both a probability."""

import torch

FEATURES, TABLES, ROWS, WIDTH = 13, 26, 1000, 16


class ManyTables(torch.nn.Module):
    """A table for each categorical feature, looked up one after another."""

    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn
        self.tables = layers.ModuleList(layers.Embedding(ROWS, WIDTH) for _ in range(TABLES))
        self.dense = layers.Sequential(
            layers.Linear(FEATURES, 64), layers.ReLU(), layers.Linear(64, WIDTH), layers.ReLU()
        )
        self.top = layers.Sequential(
            layers.Linear((TABLES + 1) * WIDTH, 128), layers.ReLU(), layers.Linear(128, 1)
        )

    def forward(self, features: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return (samples, 1) for features (samples, 13) and ids (samples, 26)."""
        found = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        return torch.sigmoid(self.top(torch.cat([self.dense(features), *found], dim=1)))


class OneTable(torch.nn.Module):
    """The same weights in one table, looked up at once."""

    def __init__(self, many: ManyTables) -> None:
        super().__init__()
        rows = torch.cat([table.weight.detach() for table in many.tables])
        self.table = torch.nn.Embedding.from_pretrained(rows)
        self.register_buffer("first", torch.arange(TABLES) * ROWS)
        self.dense, self.top = many.dense, many.top

    def forward(self, features: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return what ``ManyTables`` returns."""
        found = self.table(ids + self.first).flatten(1)
        return torch.sigmoid(self.top(torch.cat([self.dense(features), found], dim=1)))


def example() -> tuple[torch.Tensor, torch.Tensor]:
    """Return one sample."""
    return torch.randn(1, FEATURES), torch.randint(ROWS, (1, TABLES))


def many_tables() -> tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Return the recommender as it is."""
    return ManyTables(), example()


def one_table() -> tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Return the recommender with its tables made one."""
    return OneTable(ManyTables()), example()
