"""TRL's GRPOTrainer, its loss called on our tensors: tested with TRL 1.16."""

from __future__ import annotations

import collections
import copy
import types
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import MissingExtraError
from surefoot.llm.conformance.implementation import COMPARED, Case, Implementation
from surefoot.llm.losses.method import Method
from surefoot.llm.models import missing_of
from surefoot.llm.policy import LMPolicy, Rollout

KINDS = {  # our name -> loss_type, level of the ratio
    "grpo": ("grpo", "token"),
    "grpo_weighted_kl": ("grpo", "token"),
    "dapo_clip": ("dapo", "token"),
    "dual_clip": ("dapo", "token"),
    "dr_grpo": ("dr_grpo", "token"),
    "gspo": ("grpo", "sequence"),
    "luspo": ("luspo", "sequence"),
    "cispo": ("cispo", "token"),
    "sapo": ("sapo", "token"),
    "vespo": ("vespo", "token"),
    "high_entropy": ("dapo", "token"),
}


class _Alone:
    """An accelerator of one process."""

    num_processes, sync_gradients, is_main_process = 1, True, False

    @staticmethod
    def _same(value: Tensor, **_: Any) -> Tensor:
        return value

    gather = gather_for_metrics = reduce = pad_across_processes = _same

    @staticmethod
    def autocast() -> Any:
        import contextlib

        return contextlib.nullcontext()


class TRL(Implementation):
    """`_compute_loss` and `_get_per_token_logps_and_entropies` of a trainer that is no more than its settings."""

    name = "trl"
    notes = {  # noqa: RUF012
        "log-probabilities, learned positions": "passes no position ids, so that padding on the left moves learned "
        "positions, and answers are trained under other log-probabilities than they were sampled with; ours are those "
        "of sampling. Rotary models are not concerned",
    }

    def __init__(self) -> None:
        """Import it.

        Raises:
            MissingExtraError: TRL is not installed.
        """
        try:
            import trl
            from trl.trainer.grpo_trainer import GRPOTrainer
        except ImportError as error:
            raise MissingExtraError(missing_of(error, "trl"), None, f"a comparison with TRL ({error})") from error
        self.version, self._trainer = trl.__version__, GRPOTrainer

    def settings(self, name: str) -> Method:
        """As COMPARED."""
        return COMPARED[name]

    def _stub(self, name: str, case: Case) -> Any:
        kind, level = KINDS[name]
        ours = self.settings(name)
        self_ = types.SimpleNamespace(
            top_entropy_quantile=ours.share if name == "high_entropy" else 1.0,
            off_policy_mask_threshold=None,
            importance_sampling_level=level,
            loss_type=kind,
            beta=ours.kl_coefficient,
            epsilon_low=ours.low,
            epsilon_high=ours.cap if kind == "cispo" else ours.high,
            use_vllm=False,
            vllm_importance_sampling_correction=False,
            model=types.SimpleNamespace(training=True),
            current_gradient_accumulation_steps=case.parts,
            max_completion_length=case.longest,
            aux_loss_enabled=False,
            _entropy_bonus_enabled=False,
            _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
            accelerator=_Alone(),
            get_gamma_weights=self._trainer.get_gamma_weights,
            args=types.SimpleNamespace(
                use_bias_correction_kl=name == "grpo_weighted_kl",
                delta=ours.dual or None,
                sapo_temperature_pos=1.0,
                sapo_temperature_neg=1.05,
                vespo_k_pos=2.0,
                vespo_lambda_pos=3.0,
                vespo_k_neg=3.0,
                vespo_lambda_neg=2.0,
                steps_per_generation=case.parts,
            ),
        )
        self_.get_high_entropy_mask = types.MethodType(self._trainer.get_high_entropy_mask, self_)
        self_._get_per_token_logps_and_entropies = lambda *_, **__: (case.log_prob, case.entropy, None)
        return self_

    def loss(self, name: str, case: Case) -> Tensor | None:
        """By `GRPOTrainer._compute_loss`."""
        if name not in KINDS:
            return None
        ids = torch.zeros_like(case.mask, dtype=torch.long)
        inputs = {
            "prompt_ids": ids[:, :1],
            "prompt_mask": torch.ones_like(ids[:, :1]),
            "completion_ids": ids,
            "completion_mask": case.mask,
            "advantages": case.advantages.squeeze(1),
            "old_per_token_logps": case.proximal,
            "ref_per_token_logps": case.reference,
            "num_items_in_batch": torch.tensor(case.tokens),
        }
        found: Tensor = self._trainer._compute_loss(self._stub(name, case), None, inputs)
        return found

    def log_probs(self, policy: LMPolicy, rollout: Rollout) -> Tensor | None:
        """By `GRPOTrainer._get_per_token_logps_and_entropies`."""
        from trl.trainer.utils import add_fused_lm_head

        model = copy.deepcopy(policy.model)
        add_fused_lm_head(model, temperature=policy.temperature, outputs=("log_probs", "entropy"))
        stub = types.SimpleNamespace(accelerator=_Alone())
        ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], 1)
        mask = torch.cat([rollout.prompt_mask, rollout.completion_mask], 1).long()
        forward = self._trainer._get_per_token_logps_and_entropies
        found: Tensor = forward(stub, model, ids, mask, rollout.completion_ids.shape[1])[0]
        return found
