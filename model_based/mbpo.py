"""MBPO: soft actor-critic on short rollouts of a model that is learned while acting."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.engine.traits import Requires, WarmStart
from surefoot.model_based.base.alarm import AlarmConfig
from surefoot.model_based.base.measured import FRESH, FRESH_ROWS, HOLDOUT, MODEL, MeasuredModel
from surefoot.model_based.base.signals import imagined_signals, met_limits, value_signals
from surefoot.online.loops.model_replay import ReplayBesideAdded
from surefoot.online.loops.replay import Replay
from surefoot.online.sac import SAC, SoftConfig
from surefoot.world_models.ensemble.learning import ModelConfig, ensemble_of, known_notes
from surefoot.world_models.ensemble.renormalise import measured
from surefoot.world_models.imagine import imagine, rollout_noise

STARTS = "starts"


@dataclasses.dataclass(frozen=True)
class MBPOConfig(SoftConfig, ModelConfig, AlarmConfig):
    """Settings of MBPO; the defaults are the official ones for Hopper but for the following.

    Fewer rollouts; the model's epochs (see the class); SAC's target entropy, minus the number of action dimensions,
    where the official one is -1 (preset `hopper`); and a holdout of at most 1,000 rows, where that has 5,000.
    """

    initial_steps: int = 5_000
    updates_per_step: float = 20.0
    real_ratio: float = option(
        0.05, "share of each batch, rows of the replay buffer; the others are imagined", range="[0, 1]"
    )
    rollouts: int = option(20_000, "rollouts each time that rows are imagined; the paper has 100,000", range=">= 1")
    imagine_every: int = option(
        5_000, "training steps between times that rows are imagined: 250 of the environment at 20 a step", range=">= 1"
    )
    imagined_kept: int = option(4, "times that rows were imagined whose rows are kept", range=">= 1")
    length_schedule: tuple[float, float, int, int] = option(
        (20_000, 150_000, 1, 15),
        "first and last environment step of the schedule of rollouts' lengths, and the lengths there",
    )
    model_updates: int = option(4_000, "training steps before the first of the policy", range=">= 1")
    model_every: int = option(4, "training steps from one of the model to its next", range=">= 1")
    critic_loss_over: str = "half_sum"

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        schedule = self.length_schedule
        fine = len(schedule) == 4 and schedule[0] < schedule[1] and min(schedule[2:]) >= 1
        require(fine, name, "length_schedule", schedule, "two rising steps and two lengths of 1 or more")


def rollout_length(step: float, schedule: tuple[float, float, int, int]) -> int:
    """The length at an environment step: linear between the schedule's two, cut to whole steps (MBPO's appendix C)."""
    first, last, short, long = schedule
    share = min(max((step - first) / (last - first), 0.0), 1.0)
    return int(short + share * (long - short))


class MBPO(MeasuredModel, SAC):
    r"""MBPO of Janner, Fu, Zhang and Levine, "When to Trust Your Model" (NeurIPS 2019).

    The losses are SAC's, on a batch of which `real_ratio` is of the replay buffer and the rest imagined: every
    `imagine_every` training steps the policy is followed for k steps from states of the buffer, k growing with the run.
    The paper fits the model anew each time until its holdout stalls; here it keeps being fitted all the time, one
    step in `model_every`, on rows of which one in ten is held out, and elites are chosen by those whenever rows are
    imagined. How much worse the model is on the newest rows than on its holdout is the alarm's `calibration_drift`.
    """

    name = "mbpo"
    requires = Requires(one_vector=True, data="refused")
    Config: ClassVar[type] = MBPOConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "hopper": {"target_entropy": -1.0},
        "walker2d": {"target_entropy": -3.0, "length_schedule": (20_000, 150_000, 1, 1)},
        "halfcheetah": {
            "target_entropy": -3.0, "length_schedule": (20_000, 150_000, 1, 1), "updates_per_step": 40.0,
            "imagine_every": 10_000,
        },
        "ant": {"target_entropy": -4.0, "length_schedule": (20_000, 100_000, 1, 25)},
    }  # fmt: skip
    warm_start = WarmStart(counters=("imaginations",))
    config: MBPOConfig
    limits: Tensor
    imaginations: Tensor

    def build(self) -> None:
        """SAC's networks, the model, what rewards allow, and how often rows were imagined."""
        super().build()
        self.model = ensemble_of(self.spec, self.config, units=lambda states: self.normalizer.inverse(states))
        self.register_buffer("limits", torch.zeros(5))
        self.register_buffer("held", torch.zeros(()))  # the holdout's loss
        self.register_buffer("imaginations", torch.zeros((), dtype=torch.int64))

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Rows for the model, its holdout, the newest; states to begin from; and the batches of SAC."""
        c, buffer = self.config, stores.replay
        capacity = c.rollouts * max(c.length_schedule[2:]) * c.imagined_kept
        return {
            **self.model_sources(buffer, c.model_members),
            STARTS: Replay(buffer, STARTS),
            MAIN: ReplayBesideAdded(Replay(buffer, "real"), c.real_ratio, capacity, MAIN),
        }

    def notes(self, dataset: Any) -> list[str]:
        """Where no termination function is known."""
        return known_notes(self.config, self.spec.environment)

    # -- the model ----------------------------------------------------------------------------------------

    def refresh(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """The model's statistics and the limits of values, of rows of the buffer; what it predicts stays as it is."""
        limits = met_limits(batch["rewards"].min(), batch["rewards"].max(), self.config.discount)
        return {**measured(self.model, batch), "limits": limits}, {}

    # -- rows ---------------------------------------------------------------------------------------------

    def imagine(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Any], Metrics]:
        """Rows of the present policy in the model, from states of the buffer."""
        c, count = self.config, int(self.imaginations)
        step = c.model_updates if count == 0 else (c.model_updates // c.imagine_every + count) * c.imagine_every
        length = rollout_length(c.initial_steps + step / c.updates_per_step, c.length_schedule)
        found = imagine(self.model, self.actor.act, batch["observations"], noise, length)
        kept = torch.tensor(c.rollouts * length * c.imagined_kept)
        rows = {MAIN: {**found.rows(), "kept": kept}, "imaginations": self.imaginations + 1}
        signals = imagined_signals(found, self.limits[3:], c.real_ratio)
        return rows, {**signals, "rollout_length": torch.tensor(float(length))}

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """SAC's, and the alarm's signals."""
        loss, metrics = super().critic_loss(batch, noise)
        signals = value_signals(metrics["q"], self.limits, self.config.discount, self.temperature(), self.decision_dim)
        return loss, signals

    def updates(self) -> list[Update | Rule]:
        """The model; now and again its statistics and elites, and rows; then SAC."""
        c, first = self.config, self.config.model_updates
        noise = rollout_noise(self.model, max(c.length_schedule[2:]))
        asked = [
            Rule(self.choose, ("model", "held"), source=HOLDOUT, rows=c.model_holdout_limit),
            Rule(self.drift, source=FRESH, rows=FRESH_ROWS),
            Rule(self.imagine, ("imaginations",), source=STARTS, rows=c.rollouts, noise=noise),
        ]
        whole: dict[str, Any] = {"changes": ("model", "limits"), "source": STARTS, "rows": c.rollouts}
        return [
            Rule(self.refresh, until=1, **whole),
            Update(self.model_loss, ("model",), Adam(c.model_learning_rate), MODEL, c.model_every, rows=c.model_rows),
            *(dataclasses.replace(rule, after=first, until=first + 1) for rule in asked),
            *(dataclasses.replace(rule, after=first + 1, every=c.imagine_every) for rule in asked),
            Rule(self.refresh, after=first + 1, every=c.imagine_every, **whole),
            *(dataclasses.replace(entry, after=first) for entry in super().updates()),
        ]
