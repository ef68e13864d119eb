"""Drawn inputs stay what a model can take, and differ from one number to the next."""

import torch

from frameworktax.models.base import EDGES, Inputs, Model, draw

IDS = torch.tensor([[3, 7, 9, 5], [4, 4, 8, 6]])
X = torch.tensor([[-1.0, 0.5, 2.0, 0.0], [0.1, 0.2, 0.3, 0.4]])


def model():
    def inputs(batch):
        return Inputs(
            (X, 5),
            {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "flags": IDS > 5},
        )

    return Model(torch.nn.Identity(), inputs, {})


def test_number_zero_is_the_models_own():
    assert draw(model(), 2, 0).args[0] is X


def test_values_stay_within_the_example_and_constants_stay():
    seen = set()
    for number in range(1, 40):
        drawn = draw(model(), 2, number)
        x, ids, mask = drawn.args[0], drawn.kwargs["input_ids"], drawn.kwargs["attention_mask"]
        assert drawn.args[1] == 5
        assert (x.dtype, x.shape) == (X.dtype, X.shape)
        assert -1 <= x.min() <= x.max() <= 2
        assert 3 <= ids.min() <= ids.max() <= 9
        assert ids.dtype == IDS.dtype
        assert drawn.kwargs["flags"].dtype == torch.bool
        assert (mask.sum(1) >= 1).all()
        assert (mask.diff() <= 0).all()  # ones, then zeros
        assert number % 2 or mask.all()
        seen.add(tuple(x.flatten().tolist()))
    assert len(seen) == 39
    again = draw(model(), 2, 17)
    assert torch.equal(again.kwargs["input_ids"], draw(model(), 2, 17).kwargs["input_ids"])


def test_the_first_draws_are_edges():
    edges = [draw(model(), 2, number).args[0].unique().tolist() for number in range(1, EDGES + 1)]
    assert edges == [[-1.0], [2.0], [0.0]]
