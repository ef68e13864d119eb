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
        assert number % 4 != 1 or (mask.diff() <= 0).all()  # ones, then zeros
        assert number % 8 != 7 or (mask.diff() >= 0).all()
        assert number % 8 != 3 or mask[:, 0].all()
        assert number % 2 or mask.all()
        seen.add(tuple(x.flatten().tolist()))
    assert len(seen) == 39
    again = draw(model(), 2, 17)
    assert torch.equal(again.kwargs["input_ids"], draw(model(), 2, 17).kwargs["input_ids"])


def test_the_first_draws_are_edges():
    edges = [draw(model(), 2, number).args[0].unique().tolist() for number in range(1, EDGES + 1)]
    assert edges == [[-1.0], [2.0], [0.0]]


def test_floats_that_are_all_one_number_are_drawn_and_other_constants_stay():
    given = {
        "zeros": torch.zeros(2, 3),
        "negative": torch.full((2, 3), -4.0),
        "number": torch.tensor(2.5),
        "infinite": torch.full((2, 3), float("-inf")),
        "ids": torch.ones(2, 3, dtype=torch.int64),
    }
    constant = Model(torch.nn.Identity(), lambda batch: Inputs((), given), {})
    found = [draw(constant, 2, number).kwargs for number in range(1, 40)]
    for name, low, high in (("zeros", 0, 1), ("negative", -4, 0), ("number", 0, 2.5)):
        drawn = torch.stack([one[name] for one in found])
        assert low <= drawn.min() <= drawn.max() <= high
        assert drawn[0].unique().tolist() == [low] and drawn[1].unique().tolist() == [high]
        assert len({tuple(one.flatten().tolist()) for one in drawn[EDGES:]}) == 39 - EDGES
        assert drawn.dtype == given[name].dtype
    assert all(one[name] is given[name] for one in found for name in ("infinite", "ids"))


def test_one_sample_is_drawn_over_the_values_of_the_others():
    """At batch 1 an id per sample is one number: nothing else was drawn in its place."""

    def inputs(batch):
        ids = torch.tensor([3, 10, 20, 64])[torch.arange(batch) % 4]
        return Inputs((ids, ids == 3), {})

    given = Model(torch.nn.Identity(), inputs, {})
    found = [draw(given, 1, number).args for number in range(1, 40)]
    assert [int(ids) for ids, _ in found[:EDGES]] == [3, 64, 3]
    assert len({int(ids) for ids, _ in found}) > 10
    assert {bool(flag) for _, flag in found} == {False, True}
    assert all(ids.shape == (1,) and 3 <= ids <= 64 for ids, _ in found)


def test_complex_numbers_are_drawn():
    example = torch.complex(X, X.flip(0))
    given = Model(torch.nn.Identity(), lambda batch: Inputs((example,), {}), {})
    found = [draw(given, 2, number).args[0] for number in range(1, 20)]
    assert len({tuple(one.flatten().tolist()) for one in found}) == 19
    for one in found:
        assert (one.dtype, one.shape) == (example.dtype, example.shape)
        assert torch.view_as_real(one).min() >= -1 and torch.view_as_real(one).max() <= 2


def test_no_row_of_a_mask_is_masked_whole():
    """Runtimes differ in what attention to nothing is: none could be delivered."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])

    def inputs(batch):
        return Inputs((), {"attention_mask": mask[torch.arange(batch) % 2]})

    for batch in (1, 3):
        given = Model(torch.nn.Identity(), inputs, {})
        found = [draw(given, batch, n).kwargs["attention_mask"] for n in range(1, 40)]
        assert all((one.sum(1) >= 1).all() for one in found)
        assert not all(one[:, 0].all() for one in found[6::8])  # padded on the left
        assert any((one.diff().abs().sum(1) > 1).any() for one in found[2::8])  # with holes
        assert len({tuple(one.flatten().tolist()) for one in found}) > 3


def test_a_mask_of_flags_masks_as_one_of_numbers_does():
    """All of them set, each draw was the example: what ignores the mask was proven equal."""

    def inputs(dtype):
        return lambda batch: Inputs((), {"attention_mask": torch.ones(batch, 8, dtype=dtype)})

    flags, numbers = (
        [draw(Model(torch.nn.Identity(), inputs(t), {}), 2, n).kwargs["attention_mask"]
         for n in range(1, 12)]
        for t in (torch.bool, torch.int64)
    )  # fmt: skip
    assert all(one.dtype == torch.bool for one in flags)
    assert [one.tolist() for one in flags] == [one.bool().tolist() for one in numbers]
    assert not all(one.all() for one in flags)


def test_a_mask_that_is_given_by_position_is_one():
    class Masked(torch.nn.Module):
        def forward(self, x, attention_mask):
            return x * attention_mask

    def inputs(batch):
        return Inputs((torch.ones(batch, 8), torch.ones(batch, 8, dtype=torch.int64)))

    masks = [draw(Model(Masked(), inputs, {}), 2, number).args[1] for number in range(1, 12)]
    assert len({tuple(one.flatten().tolist()) for one in masks}) > 3


def test_numbers_without_a_sign_are_drawn():
    """torch finds no least one of them."""
    example = torch.tensor([[3, 9, 200]], dtype=torch.uint16)
    unsigned = Model(torch.nn.Identity(), lambda b: Inputs((example.repeat(b, 1),)), {"args.0": 0})
    for number in range(EDGES + 2):
        drawn = draw(unsigned, 2, number).args[0]
        assert drawn.dtype == torch.uint16 and drawn.shape == (2, 3)
        assert 3 <= int(drawn.long().min()) <= int(drawn.long().max()) <= 200
