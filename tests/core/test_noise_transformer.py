"""The diffusion transformer: of the published sizes, nothing at first, then all that is noisy or known counts."""

from __future__ import annotations

import pytest
import torch

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.noise_transformer import ConditionedBlock, TransformerNoise

# Peebles and Xie (2023), table 1: layers, width, heads; table 4, for patches of 2 x 2 of 4 channels: parameters.
PUBLISHED = {"S": (12, 384, 6, 33), "B": (12, 768, 12, 130), "L": (24, 1024, 16, 458), "XL": (28, 1152, 16, 675)}
OBSERVED, FIRST, TOKENS, EACH = 5, 2, 4, 3


def network(first: int = FIRST) -> TransformerNoise:
    torch.manual_seed(0)
    sizes = {"tokens": TOKENS, "first": first, "width": 8, "layers": 2, "heads": 2}
    return TransformerNoise(OBSERVED, first + (TOKENS - (first > 0)) * EACH, **sizes).double()


def moved(made: TransformerNoise) -> TransformerNoise:
    """One that training has moved: no weight is 0."""
    with torch.no_grad():
        for value in made.parameters():
            value.add_(0.3 * torch.randn_like(value))
    return made


@pytest.mark.parametrize("size", PUBLISHED)
def test_parameters_are_as_many_as_published(size: str) -> None:
    layers, width, heads, millions = PUBLISHED[size]
    with torch.device("meta"):
        made = TransformerNoise(1, 16 * 256, 256, 0, width, layers, heads)
    count = sum(value.numel() for value in made.parameters())
    condition = 2 * width + width**2 + width  # in place of the table of 1,000 classes and of none
    leaves = 16 * width + 16  # noise and its variance, of 4 numbers in 4 places, where ours predicts noise alone
    assert round((count - condition + 1001 * width + leaves) / 1e6) == millions


def test_a_block_is_the_published_equations() -> None:
    torch.manual_seed(0)
    block, tokens, known = ConditionedBlock(8, 2).double(), torch.randn(3, 4, 8).double(), torch.randn(3, 8).double()
    b1, s1, g1, b2, s2, g2 = block.reported(known * torch.sigmoid(known)).unsqueeze(1).chunk(6, -1)

    def normed(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-6).sqrt()

    query, key, value = block.attention(normed(tokens) * (1 + s1) + b1).chunk(3, -1)
    heads = [torch.nn.functional.scaled_dot_product_attention(q, k, v)
             for q, k, v in zip(query.chunk(2, -1), key.chunk(2, -1), value.chunk(2, -1), strict=True)]  # fmt: skip
    x = tokens + g1 * block.out(torch.cat(heads, -1))
    hidden = torch.nn.functional.gelu(block.widen(normed(x) * (1 + s2) + b2), approximate="tanh")
    torch.testing.assert_close(block(tokens, known), x + g2 * block.narrow(hidden), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("first", [0, FIRST])
def test_before_training_noise_is_0_and_every_weight_that_ends_a_way_gets_a_gradient(first: int) -> None:
    made = network(first)
    x, seen = torch.randn(6, made.first + (TOKENS - (first > 0)) * EACH).double(), torch.randn(6, OBSERVED).double()
    found = made(x, seen, torch.zeros(1).double())
    assert found.shape == x.shape
    assert not found.any()
    (found - 1).square().sum().backward()
    assert made.leave.weight.grad.any()
    assert first == 0 or made.leave_first.weight.grad.any()


def test_every_number_depends_on_every_token_on_the_step_and_on_what_is_known() -> None:
    made = moved(network())
    x, seen = torch.randn(1, FIRST + 3 * EACH).double(), torch.randn(1, OBSERVED).double()
    steps = torch.full((1,), 3.0).double()
    slopes = torch.autograd.functional.jacobian(lambda *given: made(*given), (x, seen, steps))
    for slope in slopes:
        assert (slope.abs() > 1e-9).all()


def test_tokens_in_another_order_are_another_plan() -> None:
    made = moved(network(0))
    x, seen, step = torch.randn(1, TOKENS, EACH).double(), torch.randn(1, OBSERVED).double(), torch.ones(1).double()
    order = [2, 0, 3, 1]
    there = made(x[:, order].flatten(1), seen, step).unflatten(-1, (TOKENS, EACH))
    assert (there - made(x.flatten(1), seen, step).unflatten(-1, (TOKENS, EACH))[:, order]).abs().max() > 1e-3
    made.places.zero_()  # and nothing else tells the order
    there = made(x[:, order].flatten(1), seen, step).unflatten(-1, (TOKENS, EACH))
    torch.testing.assert_close(there, made(x.flatten(1), seen, step).unflatten(-1, (TOKENS, EACH))[:, order])


@pytest.mark.parametrize("wrong", [{"heads": 3}, {"tokens": 6}, {"layers": 0}, {"first": -1}, {"first": 14}])
def test_sizes_that_do_not_fit_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="share the numbers equally"):
        TransformerNoise(OBSERVED, 14, **{"tokens": 4, "first": 2, "width": 8, "layers": 1, "heads": 2, **wrong})
