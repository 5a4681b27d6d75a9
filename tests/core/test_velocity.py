"""Velocity networks have the published sizes, read what they say they read, and are built again from descriptions."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.networks import Critic, Value
from surefoot.core.nn.residual import ResidualMLP, ResidualValue
from surefoot.core.nn.unet import UNetVelocity
from surefoot.core.nn.velocity import (
    EmbeddedVelocity,
    PlainVelocity,
    ShortcutVelocity,
    Sinusoids,
    VelocityNetwork,
)


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("observation_dim", "action_dim", "found"),
    [(11, 12, 553_020), (17, 24, 568_392), (111, 32, 624_720), (376, 68, 797_300)],
    ids=["hopper", "walker2d", "ant", "humanoid"],
)
def test_embedded_networks_have_the_parameters_of_reinflows(observation_dim: int, action_dim: int, found: int) -> None:
    assert count(EmbeddedVelocity(observation_dim, action_dim)) == found


def test_shortcut_networks_and_critics_have_the_parameters_of_reinflows() -> None:
    kitchen = ShortcutVelocity(60, 36, (256, 256, 256), "mish")
    assert count(kitchen) == 157_684
    assert count(ResidualValue(11)) == 134_913


def test_the_networks_of_flow_q_learning_are_four_layers_of_512_on_observation_action_and_time() -> None:
    network = PlainVelocity(28, 5)
    assert count(network) == (28 + 5 + 1 + 1) * 512 + 3 * 513 * 512 + 513 * 5
    critic = Critic(28, 5, (512,) * 4, 2, "xavier", layer_norm="after", activation="gelu_tanh")
    assert count(critic) == 2 * ((28 + 5 + 1) * 512 + 3 * 513 * 512 + 513 + 4 * 2 * 512)


def test_sinusoids_are_sines_then_cosines_of_frequencies_from_1_to_1e_4() -> None:
    found = Sinusoids(6)(torch.tensor([0.5]))[0]
    angles = 0.5 * torch.tensor([1.0, 1e-2, 1e-4])
    torch.testing.assert_close(found, torch.cat([angles.sin(), angles.cos()]))
    with pytest.raises(ConfigError, match="even"):
        Sinusoids(5)


def test_a_residual_network_by_hand() -> None:
    network = ResidualMLP(2, 1, (3, 3, 3)).double()
    x = torch.randn(4, 2, dtype=torch.float64)
    first = x @ network.first.weight.T + network.first.bias
    one, two = network.blocks
    inner = torch.relu(first) @ one.weight.T + one.bias
    first = first + torch.relu(inner) @ two.weight.T + two.bias
    torch.testing.assert_close(network(x), first @ network.last.weight.T + network.last.bias)
    for hidden in ((3, 3), (3, 4, 3), ()):
        with pytest.raises(ConfigError, match="odd number"):
            ResidualMLP(2, 1, hidden)


NETWORKS: list[VelocityNetwork] = [
    PlainVelocity(5, 4, (8, 8)),
    PlainVelocity(5, 4, (8,), "mish", "after"),
    EmbeddedVelocity(5, 4, (8, 8, 8), "mish", 6, (7, 3)),
    ShortcutVelocity(5, 4, (8, 8, 8), "relu", 6, (7, 6)),
    UNetVelocity(5, 4, 2, 16, (1, 2), 6),
    UNetVelocity(5, 4, 4, 16, (1, 1, 2), 6),
]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: f"{n.kind}{n.condition_width}")
def test_a_network_reads_observation_place_and_time_and_is_built_again(network: VelocityNetwork) -> None:
    network = copy.deepcopy(network).double()  # single precision loses five digits in norms over two numbers
    seen, x = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    time = torch.rand(3, dtype=torch.float64)
    found = network(seen, x, time)
    assert found.shape == (3, 4)
    assert network.time_features(time).shape == (3, network.time_width)
    assert network.condition(seen).shape == (3, network.condition_width)
    one = network(seen, x, time.new_full((1,), 0.3))
    torch.testing.assert_close(one, network(seen, x, time.new_full((3,), 0.3)))
    for changed in (network(seen + 1, x, time), network(seen, x + 1, time), network(seen, x, time / 2)):
        assert float((changed - found).abs().min(0).values.max().detach()) > 0
    sized = network(seen, x, time, time.new_full((1,), 0.5))
    assert bool((sized != found).any()) == network.sized
    again = VelocityNetwork.read("network", 5, 4, VelocityNetwork.write(network, "network")).double()
    again.load_state_dict(network.state_dict())
    assert torch.equal(again(seen, x, time), found)


def test_a_u_of_convolutions_sees_the_whole_chunk_and_one_convolution_two_actions_to_either_side() -> None:
    torch.manual_seed(0)
    network = UNetVelocity(3, 16 * 2, 16, 8).eval()
    seen, x, time = torch.randn(1, 3), torch.randn(1, 32), torch.rand(1)
    reach = torch.autograd.functional.jacobian(lambda x: network(seen, x, time), x)[0, :, 0].abs()
    by_action = reach.view(16, 2, 16, 2).sum((1, 3))
    assert float(by_action.min()) > 0
    short = UNetVelocity(3, 16 * 2, 16, 8, (1,))
    reach = torch.autograd.functional.jacobian(lambda x: short.down[0][0].one.convolution(x)[0], torch.randn(1, 2, 16))
    assert float(reach[:, 8, 0, :, :6].abs().max()) == 0  # a convolution reaches two actions to either side
    assert float(reach[:, 8, 0, :, 6].abs().min()) > 0
    for wrong in ({"chunk": 3}, {"chunk": 1}, {"unet_width": 12}, {"chunk": 2, "unet_width": 8}):
        with pytest.raises(ConfigError, match="needs"):
            UNetVelocity(3, 32, **wrong)  # type: ignore[arg-type]


def test_an_unknown_network_and_impossible_widths_are_refused() -> None:
    with pytest.raises(ConfigError, match="embedded"):
        VelocityNetwork.of_kind("embeded")
    with pytest.raises(ConfigError, match="the two are added"):
        ShortcutVelocity(5, 4, time_embedding=8)
    with pytest.raises(ConfigError, match="condition_hidden"):
        EmbeddedVelocity(5, 4, condition_hidden=(3,))


def test_layer_norm_after_the_activation_by_hand_with_epsilon_1e_6() -> None:
    value = Value(3, (4, 4), "xavier", "after", "gelu_tanh").double()
    assert value.mlp.norm_epsilon == 1e-6
    x = torch.randn(2, 3, dtype=torch.float64)
    seen = x
    for weight, bias in zip(value.mlp.weights[:-1], value.mlp.biases[:-1], strict=True):
        seen = seen @ weight.T + bias
        inner = (2 / torch.pi) ** 0.5 * (seen + 0.044715 * seen**3)
        seen = seen / 2 * (1 + torch.tanh(inner))
        centred = seen - seen.mean(-1, keepdim=True)
        seen = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    expected = (seen @ value.mlp.weights[-1].T + value.mlp.biases[-1]).squeeze(-1)
    torch.testing.assert_close(value(x), expected)
