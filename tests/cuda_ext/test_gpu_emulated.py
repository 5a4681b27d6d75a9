"""rollout.cuh, compiled by g++ and run thread by thread, gives what the native module gives."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import pathlib
import shutil
from typing import Any

import pytest
import torch
from emulation import H200, SMALL, Emulation
from torch import Tensor

from surefoot import cuda_ext
from surefoot.cuda_ext import gpu
from surefoot.cuda_ext.operation import constants_of, sizes_of
from surefoot.cuda_ext.policy import NativePolicy
from surefoot.cuda_ext.rollout_arrays import GIVEN, POLICY, RANDOM, SUMS
from surefoot.cuda_ext.system import System
from surefoot.envs.systems import SYSTEMS, system

pytestmark = [
    pytest.mark.skipif(cuda_ext.native() is None, reason=cuda_ext.why_not_native()),
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
]
WIDTHS = {"observations": 2, "next_observations": 2, "actions": 1}  # index in the sizes
FLAGS = ("terminated", "truncated", "diverged")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("emulation")


def policy_of(
    s: System, hidden: tuple[int, ...] = (64, 64), activation: str = "tanh", norm: bool = False, **options: Any
) -> NativePolicy:
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    outputs = len(s.actions) * (2 if options.get("log_std_range") else 1)
    widths = [len(s.observations), *hidden, outputs]
    return NativePolicy(
        [draw(b, a) / a**0.5 for a, b in itertools.pairwise(widths)],
        [0.3 * draw(b) for b in widths[1:]],
        (torch.tensor(s.action_high) + torch.tensor(s.action_low)) / 2,
        (torch.tensor(s.action_high) - torch.tensor(s.action_low)) / 2,
        activation,
        [1 + 0.2 * draw(width) for width in hidden] if norm else (),
        [0.2 * draw(width) for width in hidden] if norm else (),
        mean=0.1 * draw(widths[0]),
        scale=1 + draw(widths[0]).abs(),
        **options,
    )


def arrays_of(
    s: System, envs: int, horizon: int, record: tuple[str, ...], parameters: Tensor | None
) -> dict[str, Tensor]:
    sizes = sizes_of(s)
    arrays = constants_of(s)
    arrays["seeds"] = torch.arange(envs) * 7919 + 11
    arrays["parameters"] = (s.default_parameters() if parameters is None else parameters).float().contiguous()
    arrays |= {name: torch.full((envs,), -7).to(dtype) for name, dtype in SUMS.items()}  # the kernel must set them
    arrays["states"] = torch.full((envs, sizes[0]), float("nan"))
    arrays |= {name: torch.zeros(envs, dtype=torch.int32) for name in ("episodes", "elapsed")}
    arrays["last_observations"] = torch.zeros(envs, sizes[2])
    for name in record:
        shape = (horizon, envs, sizes[WIDTHS[name]]) if name in WIDTHS else (horizon, envs)
        arrays["record_" + name] = torch.zeros(shape, dtype=torch.uint8 if name in FLAGS else torch.float32)
    return arrays


def both(
    driver: Emulation,
    s: System,
    envs: int,
    horizon: int,
    *,
    limit: int = 1000,
    many: bool = False,
    noisy: bool = False,
    policy: NativePolicy | None = None,
    given: Tensor | None = None,
    parameters: Tensor | None = None,
    record: tuple[str, ...] = (),
    times: int = 1,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The arrays after a reset and `times` rollouts, of the native module and of the emulated kernel."""
    results = []
    for emulated in (False, True):
        arrays = arrays_of(s, envs, horizon, record, parameters)
        if policy is not None:
            arrays["policy"] = policy.packed()
        if given is not None:
            arrays["given"] = given
        source = POLICY if policy is not None else GIVEN if given is not None else RANDOM
        header = policy.header if policy is not None else []
        arguments = (s.name, sizes_of(s), envs, horizon, limit, many, noisy, source, header, arrays)
        module = cuda_ext.native()
        assert module is not None
        batch = gpu.Batch(*arguments, driver=driver) if emulated else module.Batch(*arguments)
        batch.reset(None, 1)
        for _ in range(times):
            batch.run(1)
        results.append(arrays)
    return results[0], results[1]


def assert_equal(native: dict[str, Tensor], kernel: dict[str, Tensor], tolerance: float = 2e-4) -> None:
    for name, expected in native.items():
        scale = expected.double().abs().clamp(min=1).amax()
        error = ((kernel[name].double() - expected.double()).abs() / scale).max()
        assert bool(error <= (tolerance if expected.dtype == torch.float32 else 0)), f"{name} {error:.3g}"


RECORD = ("observations", "actions", "rewards", "next_observations", *FLAGS, "costs", "margins")


@pytest.mark.parametrize("name", SYSTEMS)
def test_random_actions_of_every_system_lead_where_they_lead_on_the_processor(name: str, folder: pathlib.Path) -> None:
    s = system(name)
    native, kernel = both(Emulation(folder), s, 130, 25, noisy=s.normals > 0, record=RECORD)
    assert_equal(native, kernel)
    assert native["lengths"].min() >= 1
    assert native["record_observations"].abs().sum() > 0


@pytest.mark.parametrize("name", ["pendulum", "cartpole_balance", "linear_quadratic"])
@pytest.mark.parametrize(("envs", "lanes"), [(1, 4), (130, 2), (300, 1)])
def test_a_policy_in_the_loop_does_what_it_does_on_the_processor(
    name: str, envs: int, lanes: int, folder: pathlib.Path
) -> None:
    if name not in SYSTEMS:
        pytest.skip(f"{name} is not in this checkout")
    s = system(name)
    driver = Emulation(folder, SMALL)
    native, kernel = both(driver, s, envs, 12, policy=policy_of(s), record=("actions",))
    assert_equal(native, kernel)
    assert dict(driver.units[0].defines)["SF_LANES"] == str(lanes)
    assert driver.launches[-1][:2] == ("rollout", -(-envs * lanes // 128))


@pytest.mark.parametrize("options", [
    {"activation": "relu", "hidden": (32,)},
    {"activation": "silu", "hidden": (20, 64, 7), "norm": True},
    {"hidden": (), "squash": False},
    {"hidden": (100, 70), "norm": True, "activation": "relu"},
    {"hidden": (16,), "std": torch.tensor([0.3])},
    {"hidden": (16,), "log_std_range": (-2.0, 0.5)},
], ids=["relu", "silu-norm-narrow", "linear", "two-passes", "sampling", "sampling-before-tanh"])  # fmt: skip
def test_any_shape_of_policy_is_evaluated_alike(options: dict[str, Any], folder: pathlib.Path) -> None:
    s = system("pendulum")
    native, kernel = both(Emulation(folder), s, 40, 10, policy=policy_of(s, **options), record=RECORD)
    assert_equal(native, kernel)


def test_a_policy_too_large_for_shared_memory_reads_its_weights_through_the_cache(folder: pathlib.Path) -> None:
    s = system("pendulum")
    driver = Emulation(folder)
    native, kernel = both(driver, s, 40, 3, policy=policy_of(s, (256, 256), "relu"), record=("actions",))
    assert_equal(native, kernel)
    assert dict(driver.units[0].defines)["SF_WEIGHTS_SHARED"] == "0"


def test_episodes_begin_again_with_the_same_bookkeeping(folder: pathlib.Path) -> None:
    s = system("cartpole_balance")
    policy = policy_of(s, (16,))
    native, kernel = both(Emulation(folder), s, 70, 60, limit=11, many=True, policy=policy, record=RECORD, times=2)
    assert_equal(native, kernel, 2e-3)
    assert native["finished"].min() >= 1
    assert native["terminated"].sum() > 0
    assert native["truncated"].sum() > 0


def test_waiting_environments_change_nothing_after_their_only_episode(folder: pathlib.Path) -> None:
    s = system("cartpole_balance")
    native, kernel = both(Emulation(folder), s, 70, 80, policy=policy_of(s, (16,)), record=RECORD)
    assert_equal(native, kernel, 2e-3)
    assert len(native["lengths"].unique()) > 3
    assert (kernel["record_rewards"].sum(0) == kernel["returns"]).all()


def test_parameters_of_each_environment_and_given_actions_are_read_by_row(folder: pathlib.Path) -> None:
    s = system("pendulum")
    generator = torch.Generator().manual_seed(2)
    parameters = s.default_parameters() * (0.5 + torch.rand(33, len(s.parameters), generator=generator))
    given = 6 * torch.rand(20, 33, 1, generator=generator) - 3  # beyond the bounds: clipped
    native, kernel = both(Emulation(folder), s, 33, 20, parameters=parameters, given=given, record=RECORD)
    assert_equal(native, kernel)
    assert kernel["record_actions"].abs().max() == 2


def test_a_diverged_state_ends_its_episode_as_on_the_processor(folder: pathlib.Path) -> None:
    s = system("pendulum")
    parameters = s.default_parameters().repeat(5, 1)
    parameters[2, 0] = float("nan")
    native, kernel = both(Emulation(folder), s, 5, 6, parameters=parameters, record=RECORD)
    assert_equal({name: value.nan_to_num(9) for name, value in native.items()},
                 {name: value.nan_to_num(9) for name, value in kernel.items()})  # fmt: skip
    assert kernel["diverged"].tolist() == [0, 0, 1, 0, 0]


def test_the_order_of_threads_makes_no_difference(folder: pathlib.Path) -> None:
    s = system("cartpole_balance")
    policy = policy_of(s, (100, 64), norm=True)
    results = [both(Emulation(folder, H200, backwards), s, 45, 8, policy=policy)[1] for backwards in (False, True)]
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name]), name


def test_the_number_of_threads_an_environment_has_makes_no_difference(folder: pathlib.Path) -> None:
    s = system("cartpole_balance")
    policy = policy_of(s)
    few = both(Emulation(folder), s, 300, 4, policy=policy)[1]
    many = both(Emulation(folder, SMALL), s, 300, 4, policy=policy)[1]
    for name in ("returns", "states", "margins"):
        assert torch.equal(few[name], many[name]), name


def test_several_policies_in_one_launch_do_what_each_does_in_its_own_rows(folder: pathlib.Path) -> None:
    s, share, horizon = system("cartpole_balance"), 37, 6
    policies = [policy_of(s, (16,), std=torch.tensor([0.2])) for _ in range(3)]
    for number, policy in enumerate(policies):
        policy.weights[0].mul_(1 + number)

    def arrays_for(rows: slice, packed: Tensor) -> dict[str, Tensor]:
        arrays = arrays_of(s, 3 * share, horizon, ("actions",), None)
        for name in (*SUMS, "states", "episodes", "elapsed", "seeds", "last_observations"):
            arrays[name] = arrays[name][rows].contiguous()
        arrays["record_actions"] = arrays["record_actions"][:, rows].contiguous()
        return arrays | {"policy": packed}

    def run(arrays: dict[str, Tensor], count: int) -> Emulation:
        driver = Emulation(folder)
        given = (s.name, sizes_of(s), len(arrays["seeds"]), horizon, 4, True, False, POLICY, policies[0].header, arrays)
        batch = gpu.Batch(*given, policies=count, driver=driver)
        batch.reset()
        batch.run()
        return driver

    together = arrays_for(slice(None), torch.stack([policy.packed() for policy in policies]))
    assert [name for name, *_ in run(together, 3).launches] == ["reset", "rollout"]
    for number, policy in enumerate(policies):
        rows = slice(number * share, (number + 1) * share)
        alone = arrays_for(rows, policy.packed())
        run(alone, 1)
        for name in (*SUMS, "states", "episodes", "elapsed"):
            assert torch.equal(together[name][rows], alone[name]), name
        assert torch.equal(together["record_actions"][:, rows], alone["record_actions"])
    assert not torch.equal(together["states"][:share], together["states"][share : 2 * share])


def test_policies_that_do_not_share_the_environments_evenly_are_refused(folder: pathlib.Path) -> None:
    s, policy = system("pendulum"), policy_of(system("pendulum"), (16,))
    arrays = arrays_of(s, 5, 1, (), None) | {"policy": policy.packed().repeat(2)}
    given = (s.name, sizes_of(s), 5, 1, 9, True, False, POLICY, policy.header, arrays)
    with pytest.raises(ValueError, match="5 environments can't be shared evenly among 2 policies"):
        gpu.Batch(*given, policies=2, driver=Emulation(folder))


@pytest.mark.parametrize(
    ("words", "size", "wanted"),
    [
        (range(32), 4, 1),
        ([7] * 32, 4, 1),  # one word is handed to all
        (range(0, 64, 2), 4, 2),
        (range(0, 32 * 32, 32), 4, 32),
        (range(0, 64, 2), 8, 1),
        (range(0, 128, 4), 16, 1),
        (range(0, 32 * 32, 32), 16, 8),
        ([0, 32, 64] + [1] * 29, 4, 3),
    ],
)
def test_banks_are_counted_as_by_hand(words: Any, size: int, wanted: int, folder: pathlib.Path) -> None:
    s, driver = system("pendulum"), Emulation(folder)
    both(driver, s, 1, 1)
    given = [*words]
    assert driver.library.ways((ctypes.c_long * len(given))(*given), len(given), size) == wanted


@pytest.mark.parametrize(("envs", "lanes", "options"), [
    (3, 4, {"hidden": (64, 64)}),
    (130, 2, {"hidden": (64, 64)}),
    (300, 1, {"hidden": (64, 64)}),
    (3, 4, {"hidden": (20, 96, 7), "norm": True}),
    (300, 1, {"hidden": (20, 96, 7), "norm": True}),
], ids=str)  # fmt: skip
def test_no_bank_of_shared_memory_is_wanted_more_than_twice_at_once(
    envs: int, lanes: int, options: dict[str, Any], folder: pathlib.Path
) -> None:
    s = system("cartpole_balance")
    limits = dataclasses.replace(SMALL, shared_per_multiprocessor=2000 * 1024)  # room for one lane, whatever the policy
    driver = Emulation(folder, limits, counts_banks=True)
    native, kernel = both(driver, s, envs, 2, policy=policy_of(s, **options))
    assert_equal(native, kernel)
    assert dict(driver.units[0].defines)["SF_LANES"] == str(lanes)
    assert driver.library.bank_accesses() > 100
    assert driver.library.bank_ways() <= 2


def test_a_mask_chooses_what_is_reset(folder: pathlib.Path) -> None:
    s = system("pendulum")
    arrays = arrays_of(s, 5, 1, (), None)
    batch = gpu.Batch(s.name, sizes_of(s), 5, 1, 9, True, False, RANDOM, [], arrays, driver=Emulation(folder))
    batch.reset()
    before = arrays["states"].clone()
    assert torch.isfinite(before).all()
    arrays["episodes"] += 1
    batch.reset(torch.tensor([0, 1, 0, 0, 1], dtype=torch.uint8))
    assert (arrays["states"] != before).any(1).tolist() == [False, True, False, False, True]
