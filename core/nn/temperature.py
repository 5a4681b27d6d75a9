"""`Temperature`: the learned weight of the entropy in maximum-entropy methods, one number as a network of its own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError

FORMS = ("log", "exp", "softplus")


class Temperature(nn.Module):
    """alpha > 0: exp of its parameter ("log" and "exp") or softplus of it."""

    def __init__(self, initial: float = 1.0, form: str = "log") -> None:
        """Start at `initial`.

        Args:
            initial: alpha > 0.
            form: "log": alpha = exp(rho), and the loss is linear in rho (stable-baselines3, REDQ, H2O); "exp": the
                same alpha, and the loss is linear in alpha (CleanRL, RLPD); "softplus": alpha = softplus(rho), the
                loss linear in alpha (WSRL). Their fixed points agree.

        Raises:
            ConfigError: another form, or a start that is not positive.
        """
        super().__init__()
        if form not in FORMS:
            raise ConfigError(f"temperature form is {form!r}, must be one of {', '.join(FORMS)}")
        if not initial > 0:
            raise ConfigError(f"the temperature starts at {initial}, must be above 0")
        self.form = form
        self.rho = nn.Parameter(torch.tensor(self._rho(initial)))

    def _rho(self, alpha: float) -> float:
        if self.form == "softplus":  # which is the identity to a float's last digit where expm1 would overflow
            return math.log(math.expm1(alpha)) if alpha < 500 else alpha
        return math.log(alpha)

    @torch.no_grad()
    def set(self, alpha: float) -> None:
        """Make alpha > 0 the present temperature."""
        self.rho.fill_(self._rho(alpha))

    def forward(self) -> Tensor:
        """() alpha."""
        return nn.functional.softplus(self.rho) if self.form == "softplus" else self.rho.exp()

    def loss(self, log_densities: Tensor, target_entropy: float) -> Tensor:
        """() whose descent lowers alpha where the entropy is above its target, and raises it below.

        Args:
            log_densities: (B,) of actions that the policy has drawn, in nats; not differentiated.
            target_entropy: in nats.

        Source: Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", eq. (18).
        """
        weight = self.rho if self.form == "log" else self()
        return -weight * (log_densities.detach() + target_entropy).mean()
