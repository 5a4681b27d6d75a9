"""Settings of FISOR."""

from __future__ import annotations

import dataclasses

from surefoot.core.engine.agent import require
from surefoot.core.nn.noise_networks import NETWORKS
from surefoot.safe.signal import PUBLISHED_VIOLATION, SIGNALS

CHOICES = ("lowest", "feasible", "best")
SCHEDULES = ("cosine", "constant")


@dataclasses.dataclass(frozen=True)
class FISORConfig:
    """Settings of FISOR; the defaults are the preset `small`."""

    signal: str = "auto"  # h: margin, published, or auto: the margin where there is one
    violation: float = PUBLISHED_VIOLATION  # M of the published signal: 25 sees 324 steps ahead, 1 sees 68
    expectile: float = 0.9  # of the reward value; nearer 1 is nearer the best action in the data
    cost_expectile: float = 0.9  # tau of the feasible value; nearer 1 is nearer the safest action in the data
    discount: float = 0.99
    timeouts_end: bool = False  # treat the end of a recording as one of the task (official); else bootstrap through it
    target_rate: float = 0.005  # of the critics' averages, every step
    learning_rate: float = 3e-4  # of values and critics
    schedule: str = "cosine"  # of that rate: to 0 over the run's steps, or constant (official)
    actor_learning_rate: float = 1e-3  # of the noise network; official: 3e-4, for a million steps
    actor_decay: float = 1.0  # its rate falls along a cosine that ends after this many times the run's steps
    hidden: tuple[int, ...] = (256, 256)  # of values and critics
    reward_temperature: float = 0.5  # multiplies the reward advantage in feasible states; 3 (official) needs long runs
    cost_temperature: float = 5.0  # multiplies the safety advantage in infeasible ones
    reward_weight_max: float = 100.0
    cost_weight_min: float = 0.0  # 1 keeps every infeasible row at 1 or more (the official branch for MetaDrive)
    cost_weight_max: float = 150.0
    network: str = "mlp"  # of the noise: mlp (small) or residual (official)
    noise_hidden: tuple[int, ...] = (256, 256)  # of the mlp
    width: int = 256  # of the residual network
    blocks: int = 3
    dropout: float = 0.1  # of the residual network
    diffusion_steps: int = 5  # T
    beta_min: float = 0.1
    beta_max: float = 10.0
    actor_rows: int = 256  # of an update of the actor
    actor_updates: int = 1  # a training step, each on rows of its own
    average_rate: float = 0.001  # of the noise network's average, which is what acts
    samples: int = 8  # N actions drawn for an observation
    choice: str = "feasible"  # which acts: lowest, the safest (official); feasible, the first such; best, of those
    reserve: float = 0.05  # by which Q_h of a feasible sample must be below 0, in standard deviations of h
    normalization: str = "observations"  # of observations: none (official), observations or stacked

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        require(self.signal in SIGNALS, "fisor", "signal", self.signal, ", ".join(SIGNALS[:-1]) + f" or {SIGNALS[-1]}")
        require(self.violation > 0, "fisor", "violation", self.violation, "> 0")
        for name in ("expectile", "cost_expectile"):
            require(0 < getattr(self, name) < 1, "fisor", name, getattr(self, name), "in (0, 1)")
        for name in ("reward_temperature", "cost_temperature"):
            require(getattr(self, name) >= 0, "fisor", name, getattr(self, name), ">= 0")
        low, high = self.cost_weight_min, self.cost_weight_max
        require(0 <= low <= high, "fisor", "cost_weight_min", low, f"in [0, cost_weight_max = {high}]")
        require(self.schedule in SCHEDULES, "fisor", "schedule", self.schedule, " or ".join(SCHEDULES))
        require(self.network in NETWORKS, "fisor", "network", self.network, " or ".join(sorted(NETWORKS)))
        require(self.choice in CHOICES, "fisor", "choice", self.choice, ", ".join(CHOICES[:-1]) + f" or {CHOICES[-1]}")
        require(self.reserve >= 0, "fisor", "reserve", self.reserve, ">= 0")
        require(0 <= self.dropout < 1, "fisor", "dropout", self.dropout, "in [0, 1)")
        for name in ("actor_rows", "actor_updates", "samples", "diffusion_steps"):
            require(getattr(self, name) >= 1, "fisor", name, getattr(self, name), "at least 1")
