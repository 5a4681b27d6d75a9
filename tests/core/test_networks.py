"""MLPs, ensembles and their initialisations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.networks import MLP, Critic, Value


def separate(network: MLP, member: int) -> nn.Sequential:
    """The member as torch's own layers."""
    layers: list[nn.Module] = []
    for index, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        linear = nn.Linear(weight.shape[-1], weight.shape[-2])
        linear.load_state_dict({"weight": weight[member], "bias": bias[member]})
        layers.append(linear)
        if index < len(network.weights) - 1:
            if len(network.scales):
                norm = nn.LayerNorm(weight.shape[-2], eps=network.norm_epsilon)
                norm.load_state_dict({"weight": network.scales[index][member], "bias": network.shifts[index][member]})
                layers.append(norm)
            layers.append({"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU, "gelu": nn.GELU}[network.activation]())
    return nn.Sequential(*layers)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh", "silu", "gelu"])
def test_an_ensemble_equals_separate_networks(activation: str, layer_norm: bool) -> None:
    network = MLP(5, 2, (16, 8), members=4, activation=activation, layer_norm=layer_norm)
    with torch.no_grad():
        for scale in (*network.scales, *network.shifts):
            scale.normal_()
    inputs = torch.randn(30, 5)
    outputs = network(inputs)
    assert outputs.shape == (4, 30, 2)
    for member in range(4):
        alone = separate(network, member)(inputs)
        assert (outputs[member] - alone).abs().max() < 1e-6
        if activation == "relu":
            assert (network.member(inputs, member) - alone).abs().max() < 1e-6


def test_layer_norms_add_their_epsilon_to_the_variance() -> None:
    network = MLP(1, 1, (2,), layer_norm=True, norm_epsilon=1e-6).double()
    with torch.no_grad():
        network.weights[0].copy_(torch.tensor([[1e-3], [-1e-3]], dtype=torch.float64))
        network.weights[1].copy_(torch.tensor([[1.0, 0.0]]))
        for bias in network.biases:
            bias.zero_()
    # units of 1e-3 and -1e-3 have variance 1e-6, so that each is divided by sqrt(2e-6): 1 / sqrt 2, not 1 / sqrt 11
    assert float(network(torch.ones(1, 1).double()).detach()) == pytest.approx(2**-0.5, rel=1e-12)


def test_usual_weights_give_the_same_outputs_by_layer_norms_that_add_torchs_default() -> None:
    network, same = (MLP(5, 2, (16, 8), members=3, layer_norm=True, norm_epsilon=e).double() for e in (1e-6, 1e-5))
    with torch.no_grad():
        for bias in network.biases:
            bias.zero_()
    same.load_state_dict(network.state_dict())
    inputs = 1e-2 * torch.randn(30, 5).double()
    with torch.no_grad():
        assert (same(inputs) - network(inputs)).abs().max() > 1e-5
        for parameters, values in zip(
            (same.weights, same.biases), network.usual([*network.weights], [*network.biases])
        ):
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(value)
    torch.testing.assert_close(same(inputs), network(inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_member_equals_the_ensembles_row(activation: str, layer_norm: bool) -> None:
    network = MLP(5, 2, (16, 8), members=3, activation=activation, layer_norm=layer_norm)
    inputs = torch.randn(7, 5)
    for index in range(3):
        torch.testing.assert_close(network.member(inputs, index), network(inputs)[index], rtol=1e-5, atol=1e-6)


def test_each_member_can_have_inputs_of_its_own() -> None:
    network = MLP(5, 2, (16,), members=3)
    inputs = torch.randn(3, 7, 5)
    outputs = network(inputs)
    for index in range(3):
        assert (outputs[index] - network(inputs[index])[index]).abs().max() < 1e-6


def test_vectorised_critics_equal_separate_ones_in_values_and_gradients() -> None:
    critic = Critic(3, 2, (16, 16), members=5, initialization="edac")
    inputs = torch.randn(20, 5)
    targets = torch.randn(20)
    values = critic(inputs)
    assert values.shape == (5, 20)
    wanted = list(critic.parameters())
    gradients = torch.autograd.grad((values - targets).square().mean(-1).sum(), wanted)
    for member in range(5):
        alone = separate(critic.mlp, member)
        own = alone(inputs).squeeze(-1)
        assert (values[member] - own).abs().max() < 1e-6
        own_gradients = torch.autograd.grad((own - targets).square().mean(), list(alone.parameters()))
        weights, biases = gradients[:3], gradients[3:]
        for layer in range(3):
            torch.testing.assert_close(weights[layer][member], own_gradients[2 * layer], rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(biases[layer][member], own_gradients[2 * layer + 1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(critic.first(inputs), values[0], rtol=1e-5, atol=1e-6)


def test_members_start_different_from_each_other() -> None:
    critic = Critic(3, 2, (8,), members=3)
    values = critic(torch.randn(10, 5))
    assert (values[0] - values[1]).abs().max() > 1e-3
    assert (values[1] - values[2]).abs().max() > 1e-3


@pytest.mark.parametrize("members", [None, 3])
def test_orthogonal_initialisation_has_gain_root_two_everywhere_and_no_biases(members: int | None) -> None:
    network = MLP(6, 2, (16, 8), members=members, initialization="orthogonal")
    for weight in network.weights:
        for matrix in [weight] if members is None else weight.unbind(0):
            short = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
            torch.testing.assert_close(short, 2 * torch.eye(len(short)), rtol=0, atol=2e-5)
    assert all(not bias.any() for bias in network.biases)


@torch.no_grad()
def within(tensor: Tensor, bound: float) -> bool:
    """All inside [-bound, bound], and spread over it as a uniform draw is."""
    inside = bool((tensor.abs() <= bound).all())
    return inside and float(tensor.std()) == pytest.approx(bound / math.sqrt(3), rel=0.15)


def test_torch_initialisation_is_that_of_linear_layers() -> None:
    network = MLP(50, 40, (400,), members=2)
    for weight, bias in zip(network.weights, network.biases, strict=True):
        bound = 1 / math.sqrt(weight.shape[-1])
        assert within(weight, bound)
        assert within(bias, bound)


def test_edac_initialisation_has_biases_of_a_tenth_and_a_small_last_layer() -> None:
    network = MLP(50, 40, (400, 300), members=5, initialization="edac")
    assert all((bias == 0.1).all() for bias in list(network.biases)[:-1])
    assert all(within(w, 1 / math.sqrt(w.shape[-1])) for w in list(network.weights)[:-1])
    assert within(network.weights[-1], 3e-3)
    assert within(network.biases[-1], 3e-3)


def test_corls_ensembles_start_by_the_width_of_a_layers_outputs() -> None:
    network = MLP(50, 1, (400, 300), members=5, initialization="corl")
    assert all((bias == 0.1).all() for bias in list(network.biases)[:-1])
    assert all(within(w, 1 / math.sqrt(w.shape[-2])) for w in list(network.weights)[:-1])
    assert within(network.weights[-1], 3e-3)


def test_dropout_masks_multiply_the_hidden_units() -> None:
    network = MLP(4, 2, (6, 5))
    inputs = torch.randn(9, 4)
    masks = (torch.rand(9, 11) < 0.8).float() / 0.8
    hidden = torch.relu(nn.functional.linear(inputs, network.weights[0], network.biases[0])) * masks[:, :6]
    hidden = torch.relu(nn.functional.linear(hidden, network.weights[1], network.biases[1])) * masks[:, 6:]
    expected = nn.functional.linear(hidden, network.weights[2], network.biases[2])
    torch.testing.assert_close(network(inputs, masks), expected)
    torch.testing.assert_close(network(inputs, torch.ones(9, 11)), network(inputs))


def test_a_value_network_gives_one_number_a_row() -> None:
    value = Value(4, (8, 8), "orthogonal")
    inputs = torch.randn(9, 4)
    assert value(inputs).shape == (9,)
    torch.testing.assert_close(value(inputs), value.mlp(inputs)[:, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"hidden": ()}, "hidden"), ({"hidden": (8, 0)}, "hidden"), ({"activation": "rleu"}, "activation is 'rleu'")],
)
def test_sizes_and_names_that_make_no_network_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MLP(3, 2, **options)
