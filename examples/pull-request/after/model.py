"""The model that a service calls: eight small layers, each checked for overflow."""

import torch


class Net(torch.nn.Module):
    """Linear layers with a residual around each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (samples, 64) for (samples, 64)."""
        for layer in self.layers:
            x = x + torch.relu(layer(x))
            if not torch.isfinite(x).all():
                raise FloatingPointError("overflow")
        return x


def build() -> tuple[torch.nn.Module, torch.Tensor]:
    """Return the model and one sample."""
    return Net(), torch.randn(1, 64)
