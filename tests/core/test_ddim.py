"""DDIM and the cosine schedule: closed forms, exact noise, and such policies as files."""

from __future__ import annotations

import math
import pathlib

import numpy as np
import pytest
import torch
from diffusion_heads import ROWS
from torch import Tensor

from surefoot.core.actors.diffusion import (
    DiffusionActor,
    Schedule,
    denoising_loss,
    implicit,
    implicit_coefficients,
    implicit_steps,
)
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.native import kernels
from surefoot.core.nn.noise_networks import (
    PlainNoise,
    mish,
)
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy


def test_the_cheaper_mish_is_mish_everywhere() -> None:
    x = torch.cat([torch.linspace(-110, 110, 20_001), torch.randn(1000)]).requires_grad_()
    exact = x.detach().double().requires_grad_()
    with kernels.use(kernels.Slots()):
        found = mish(x)
    expected = exact * torch.tanh(torch.nn.functional.softplus(exact, threshold=1000))
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-30)
    own, other = torch.autograd.grad(found.sum(), x)[0], torch.autograd.grad(expected.sum(), exact)[0]
    torch.testing.assert_close(own.double(), other, rtol=0, atol=1e-6)


# -- DDIM and the cosine schedule -------------------------------------------------------------------------------


def test_the_cosine_schedule_has_its_closed_form_and_no_beta_above_its_bound() -> None:
    schedule = Schedule.cosine(20)
    left = [math.cos(math.pi / 2 * (n / 20 + 0.008) / 1.008) ** 2 for n in range(21)]
    assert schedule.products[:19] == pytest.approx([one / left[0] for one in left[1:20]])
    assert schedule.betas[-1] == pytest.approx(0.999)
    assert max(schedule.betas[:-1]) < 0.999
    assert Schedule.cosine(1).steps == 1
    with pytest.raises(ConfigError, match="cosine"):
        Schedule.cosine(0)


def test_ddim_takes_evenly_spaced_steps_down_to_the_first() -> None:
    assert implicit_steps(100, 5) == (80, 60, 40, 20, 0)
    assert implicit_steps(20, 20) == tuple(range(19, -1, -1))
    assert implicit_steps(7, 3) == (4, 2, 0)
    for taken in (0, 8):
        with pytest.raises(ConfigError, match="DDIM"):
            implicit_steps(7, taken)


def test_a_ddim_step_keeps_the_variance_that_the_schedule_has_there() -> None:
    for eta in (0.0, 0.5, 1.0):
        to_data, to_noise, deviation = implicit_coefficients(0.3, 0.6, eta)
        assert to_data**2 == pytest.approx(0.6)
        assert to_noise**2 + deviation**2 == pytest.approx(0.4)
    beta = 1 - 0.3 / 0.6
    assert deviation**2 == pytest.approx(beta * (1 - 0.6) / (1 - 0.3))  # the posterior's
    assert implicit_coefficients(0.3, 1.0, 1.0) == (1.0, 0.0, 0.0)


def test_ddim_with_exact_noise_maps_normal_data_to_normal_data_without_any_noise_of_its_own() -> None:
    """Of one Gaussian the exact map is linear: with many steps the deviation of the data is found again."""
    schedule = Schedule.cosine(200)

    def predict(x: Tensor, step: int) -> Tensor:
        product = schedule.products[step]
        return math.sqrt(1 - product) * (x - math.sqrt(product) * 0.3) / (product * 0.04 + 1 - product)

    noise = torch.randn(ROWS, 1, 1)
    drawn = implicit(predict, noise, schedule, 200, limit=None)
    assert float(drawn.mean()) == pytest.approx(0.3, abs=0.005)
    assert float(drawn.std()) == pytest.approx(0.2, abs=0.01)
    assert torch.equal(drawn, implicit(predict, noise, schedule, 200, limit=None))
    stochastic = implicit(predict, torch.randn(10_000, 200, 1), schedule, 200, eta=1.0, limit=None)
    assert float(stochastic.std()) == pytest.approx(0.2, abs=0.02)


def test_the_denoising_loss_sums_over_numbers_and_averages_over_rows() -> None:
    predicted, noise = torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert float(denoising_loss(predicted, noise)) == 15.0
    assert float(denoising_loss(predicted, noise, torch.tensor([1.0, 0.0]))) == 2.5
    assert float(denoising_loss(predicted, noise, mask=torch.tensor([[1.0, 0.0], [1.0, 1.0]]))) == 13.0


def test_a_ddim_policy_is_written_and_read_and_exported(tmp_path: pathlib.Path) -> None:
    actor = DiffusionActor(PlainNoise(3, 2, (16,), 4), Schedule.cosine(20), 2, implicit=5)
    assert actor.noise_dim == 2
    tested = Policy.of(actor, Normalizer(3), -torch.ones(2), torch.ones(2))
    tested.save(tmp_path / "policy")
    seen, noise = torch.randn(4, 3), torch.randn(4, 2)
    assert torch.equal(Policy.load(tmp_path / "policy")(seen, noise), tested(seen, noise))
    onnxruntime = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    pytest.importorskip("onnxscript", reason="the onnx extra is not installed")
    tested.export(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
    found = session.run(["actions"], {"observations": seen.numpy(), "noise": noise.numpy()})[0]
    np.testing.assert_allclose(found, tested(seen, noise).numpy(), rtol=0, atol=1e-5)
