"""Our losses under the signatures of verl and TRL, and inside of them where they are installed."""

from __future__ import annotations

import collections
import importlib.util
import json
import pathlib
import sys
import types
from typing import Any

import pytest
import torch

from surefoot.core.base.errors import ConfigError, MissingExtraError
from surefoot.llm import method
from surefoot.llm.conformance import engine
from surefoot.llm.conformance.implementation import random_case
from surefoot.llm.export import (
    check_trl,
    exported_to_verl,
    register_verl,
    trl_trainer,
    verl_advantages,
    verl_policy_loss,
)
from surefoot.llm.losses.method import ADVANTAGES, loss

EXPORTED = exported_to_verl()
installed = importlib.util.find_spec


@pytest.mark.parametrize("name", EXPORTED)
def test_a_loss_for_verl_is_ours_with_the_batchs_denominators(name: str) -> None:
    case = random_case("part", 3, gap=0.3, parts=4)
    config = types.SimpleNamespace(
        global_batch_info={
            "dp_size": 2,
            "batch_num_tokens": 2 * case.tokens,
            "global_batch_size": 2 * case.rows,
            "loss_scale_factor": 13,
        }
    )
    found, metrics = verl_policy_loss(name)(
        old_log_prob=case.proximal,
        log_prob=case.log_prob,
        advantages=case.advantages.expand_as(case.mask),
        response_mask=case.mask.long(),
        config=config,
    )
    one = method(name, kl="none", kl_coefficient=0.0, weight_cap=0.0, drop_above_cap=False)
    expected, _ = loss(one, case.batch(), 13, case.tokens, case.rows)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    gradients = [torch.autograd.grad(value, case.log_prob)[0] for value in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)
    assert all(isinstance(value, float) for value in metrics.values())


def test_advantages_for_verl_take_prompts_by_their_ids() -> None:
    rewards = torch.zeros(4, 3)
    rewards[:, 2] = torch.tensor([1.0, 5.0, 3.0, 5.0])
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 1, 1]])
    found, returns = verl_advantages("loo")(rewards, mask, index=["a", "b", "a", "b"])
    assert found.tolist() == [[-2, -2, -2], [0, 0, 0], [2, 0, 2], [0, 0, 0]]
    assert returns is found


def test_what_an_engine_can_not_give_is_refused() -> None:
    with pytest.raises(ConfigError, match="'pacs' reads rewards of whole groups"):
        verl_policy_loss("pacs")
    with pytest.raises(ConfigError, match="'entropy_tokens' reads the entropy"):
        verl_policy_loss("entropy_tokens")
    for name, value in (("kl", "k3"), ("kl_coefficient", 0.01), ("entropy_coefficient", 0.1), ("weight_cap", 2.0)):
        with pytest.raises(ConfigError, match=rf"method\.{name}={value!r}: KL, entropy and .* are verl's own"):
            verl_policy_loss("grpo", **{name: value})
    for name, value in (("drop_truncated", True), ("overlong_share", 0.5), ("advantages", "loo")):
        with pytest.raises(ConfigError, match=rf"method\.{name}={value!r} has no effect in a loss alone"):
            verl_policy_loss("dapo_clip", **{name: value})
    with pytest.raises(ConfigError, match="unknown advantages 'grpo'"):
        verl_advantages("grpo")
    with pytest.raises(ConfigError, match="'nlpo' samples from the nucleus"):
        verl_policy_loss("nlpo")
    with pytest.raises(ConfigError, match="'process' reads rewards of steps"):
        verl_policy_loss("process")
    assert not {"nlpo", "process", "pacs", "stapo"} & set(EXPORTED)
    for name, call in (("trl", lambda: trl_trainer("grpo")), ("verl", register_verl)):
        if installed(name) is None:
            with pytest.raises(MissingExtraError, match=f"needs the package '{name}'"):
                call()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raft", "advantages 'best'"),
        ("brpo", "advantages 'pairwise'"),
        ("process", "advantages 'steps'"),
        ("reinforce_pp", "advantages 'whitened_to_go'"),
        ("rloo", "advantages 'loo'"),
        ("nlpo", "samples from the nucleus"),
        ("dapo_clip", "mixed_groups=False"),
        ("entropy_tokens", "mixed_groups=False"),
        ("stapo", "get_soft_overlong_punishment"),
        ("oapl", "reads rewards of whole groups"),
    ],
)
def test_a_method_of_which_trl_lacks_a_part_is_refused(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        trl_trainer(name)


def test_settings_of_trl_that_the_method_does_not_have_or_read_are_refused() -> None:
    usual = {"scale_rewards": "group", "beta": 0.0, "use_vllm": True, "vllm_importance_sampling_correction": False}
    check_trl(method("vespo"), types.SimpleNamespace(**usual))
    for name, changes, why in (
        ("vespo", {"scale_rewards": "batch"}, "scale_rewards='group'"),
        ("dr_grpo", {}, "scale_rewards='none'"),
        ("grpo", {}, "KL coefficient of 0.001"),
        ("vespo", {"beta": 0.1}, "KL coefficient of 0.0"),
        ("grpo", {"beta": 0.001, "use_bias_correction_kl": True}, "say use_bias_correction_kl=False"),
        ("vespo", {"entropy_coef": 0.1}, r"entropy_coef=0.1 .* leave it at 0.0"),
        ("vespo", {"top_entropy_quantile": 0.2}, "top_entropy_quantile"),
        ("vespo", {"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold"),
        ("async_ppo", {"vllm_importance_sampling_correction": True}, "weights of its own for the sampler"),
        ("luspo", {"vllm_importance_sampling_correction": True}, "one term for each answer"),
    ):
        with pytest.raises(ConfigError, match=why):
            check_trl(method(name), types.SimpleNamespace(**{**usual, **changes}))


class Recorded:
    """What `trl_trainer` reads of TRL's GRPOTrainer: a forward pass, which is recorded, and places for metrics."""

    def __init__(self, *, args: Any = None) -> None:
        self.args, self.model = args, types.SimpleNamespace(training=True)
        self.current_gradient_accumulation_steps, self.max_completion_length = 1, 3
        self.accelerator = types.SimpleNamespace(num_processes=1)
        self._metrics = {"train": collections.defaultdict(list)}
        self.aux_loss_enabled, self.router_aux_loss_coef = False, 0.5
        self.log_prob = torch.tensor([[-1.0, -2.0, -0.5], [-0.3, -1.0, 0.0]], requires_grad=True)
        self.seen: dict[str, Any] = {}

    def _get_per_token_logps_and_entropies(self, *given: Any, **seen: Any) -> tuple[Any, Any, Any]:
        self.seen = seen
        return self.log_prob, torch.zeros(2, 3), torch.tensor(4.0)


def test_what_trl_gives_its_loss_reaches_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of the sampler, pictures and a router's loss, by hand; without TRL."""
    monkeypatch.setitem(sys.modules, "trl", types.SimpleNamespace(GRPOTrainer=Recorded))
    args = types.SimpleNamespace(scale_rewards="none", beta=0.0, steps_per_generation=1)
    trainer = trl_trainer("dr_grpo")(args=args)
    ids, mask = torch.ones(2, 3, dtype=torch.long), torch.tensor([[1, 1, 1], [1, 1, 0]])
    inputs = {"prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": mask}
    inputs |= {"advantages": torch.tensor([2.0, -1.0]), "num_items_in_batch": torch.tensor(5.0)}
    plain = trainer._compute_loss(None, inputs)
    # every ratio is 1: the sum of -A over tokens, by the length of 3 and two answers
    assert float(plain.detach()) == pytest.approx(-(3 * 2 - 2 * 1) / 3 / 2)
    weights = torch.tensor([[0.5, 1.0, 2.0], [3.0, 0.0, 7.0]])
    weighed = trainer._compute_loss(None, inputs | {"importance_sampling_ratio": weights})
    assert float(weighed.detach()) == pytest.approx(-(3.5 * 2 - 3 * 1) / 3 / 2)
    gradient = torch.autograd.grad(weighed, trainer.log_prob)[0]
    torch.testing.assert_close(gradient, torch.tensor([[-1.0, -2.0, -4.0], [3.0, 0.0, 0.0]]) / 6)
    assert trainer.seen == {"compute_entropy": True}
    trainer.aux_loss_enabled = True
    pictures = {"pixel_values": torch.zeros(1), "image_grid_thw": torch.ones(1)}
    with_router = trainer._compute_loss(None, inputs | pictures)
    assert float(with_router.detach()) == pytest.approx(float(plain.detach()) + 0.5 * 4.0)
    assert set(trainer.seen) == {"compute_entropy", "compute_aux_loss", *pictures}
    with pytest.raises(ConfigError, match="scale_rewards='none'"):
        trl_trainer("dr_grpo")(args=types.SimpleNamespace(scale_rewards="group", beta=0.0))


def test_an_engine_whose_own_packages_are_missing_is_told_by_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Halfway(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise ModuleNotFoundError("No module named 'tensordict.nn'", name="tensordict.nn")

    for engine_name, call in (("trl", lambda: trl_trainer("dr_grpo")), ("trl", lambda: engine("trl"))):
        for module in (engine_name, f"{engine_name}.trainer", f"{engine_name}.trainer.grpo_trainer"):
            monkeypatch.setitem(sys.modules, module, Halfway(module))
        with pytest.raises(MissingExtraError, match=r"tensordict.nn.* needs the package 'tensordict'"):
            call()


@pytest.mark.skipif(installed("verl") is None, reason="verl is not installed")
def test_verl_finds_what_was_registered() -> None:
    names = register_verl()
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn

    assert get_policy_loss_fn("surefoot_vespo").__name__ == "surefoot_vespo"
    assert get_adv_estimator_fn("surefoot_batchstd").__name__ == "surefoot_batchstd"
    assert get_adv_estimator_fn("surefoot_best").__name__ == "surefoot_best"
    assert len(names) == len(EXPORTED) + len(ADVANTAGES)
    with pytest.raises(ConfigError, match="'process' reads rewards of steps"):
        register_verl(["grpo", "process"])


@pytest.mark.skipif(installed("trl") is None, reason="TRL is not installed")
@pytest.mark.parametrize(
    ("name", "kind", "changes", "settings"),
    [
        ("dapo_clip", "dapo", {"mixed_groups": False, "overlong_share": 0.0}, {"epsilon_high": 0.28}),
        ("vespo", "vespo", {}, {}),
        ("cispo", "cispo", {}, {"epsilon_high": 5.0}),
        ("grpo", "grpo", {"kl_coefficient": 0.2, "kl": "k3_weighted"}, {"beta": 0.2}),
        ("dr_grpo", "dr_grpo", {}, {"scale_rewards": "none"}),
    ],
)
def test_trls_trainer_takes_the_same_steps_with_our_loss(
    name: str, kind: str, changes: dict[str, Any], settings: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from surefoot.llm.characters import character_policy

    def sevens(completions: list[str], **columns: Any) -> list[float]:
        return [text.count("7") / 4 for text in completions]

    found = []
    for trainer in (GRPOTrainer, trl_trainer(name, **changes)):
        policy = character_policy("0123456789=", layers=1, width=32, heads=2, context=16, rotary=True)
        config = GRPOConfig(
            output_dir=str(tmp_path), loss_type=kind, max_steps=2, per_device_train_batch_size=8, num_generations=4,
            max_completion_length=4, learning_rate=1e-2, report_to=[], use_cpu=True, bf16=False, seed=1,
            **settings,
            gradient_accumulation_steps=2, logging_steps=1, disable_tqdm=True, save_strategy="no",
            gradient_checkpointing=False,
        )  # fmt: skip
        model = tmp_path / "model"  # by its folder, for TRL reads the reference from there
        policy.model.save_pretrained(model)
        prompts = Dataset.from_list([{"prompt": f"{n}="} for n in range(10)])
        running = trainer(
            model=str(model),
            reward_funcs=sevens,
            args=config,
            train_dataset=prompts,
            processing_class=policy.tokenizer,
        )
        running.train()
        found.append({key: value.detach().clone() for key, value in running.model.named_parameters()})
        if trainer is not GRPOTrainer:
            assert any(key.startswith("surefoot/") for line in running.state.log_history for key in line)
            json.dumps(running.state.log_history)
    begun = character_policy("0123456789=", layers=1, width=32, heads=2, context=16, rotary=True).model.state_dict()
    assert max(float((value - begun[key]).abs().max()) for key, value in found[0].items()) > 1e-2
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=1e-4, atol=2e-5, msg=key)
