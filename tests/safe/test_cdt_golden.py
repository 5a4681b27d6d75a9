"""The constrained decision transformer's step against torch's own layers."""

from __future__ import annotations

import copy

import torch
from safe_problems import agents, relative
from torch import Tensor, nn

from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform


def test_the_transformers_step_equals_torchs_own_layers() -> None:
    """One step of CDT, its blocks as `nn.MultiheadAttention` with a causal mask, its loss by `torch.distributions`."""
    (agent,) = agents("cdt", [3], dropout=0.0)
    agent.double()
    actor, context = agent.actor, 4
    actor.return_scale.fill_(7.0)
    actor.cost_scale.fill_(70.0)
    source = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]], dtype=torch.float64)
    batch = {
        "observations": normal(3, context, 3),
        "actions": torch.tanh(normal(3, context, 2)),
        "costs": (normal(3, context) > 0).double(),
        "returns_to_go": normal(3, context) * 5,
        "costs_to_go": normal(3, context).abs() * 20,
        "timesteps": torch.arange(12, dtype=torch.float64).reshape(3, 4) * 50,
        "mask": mask,
    }
    twin = copy.deepcopy(agent)
    learner = Learner([agent], [0], Uniform(lambda _: batch, 100), batch_size=3, dtype=torch.float64)
    learner.run(1)

    own = twin.actor
    freq = torch.exp(-torch.log(torch.tensor(1e4, dtype=torch.float64)) * torch.arange(8, dtype=torch.float64) / 7)
    angle = batch["timesteps"][..., None] * freq
    clock = own.of_time(torch.cat([torch.sin(angle), torch.cos(angle)], -1))
    parts = (
        own.of_return(batch["returns_to_go"][..., None] / 7),
        own.of_cost(batch["costs_to_go"][..., None] / 70),
        own.of_observation(batch["observations"]),
        own.of_action(batch["actions"]),
    )
    tokens = own.enter(torch.stack([part + clock for part in parts], 2).reshape(3, 16, 8))
    padding = mask.repeat_interleave(4, 1) == 0
    hidden = torch.ones(16, 16, dtype=torch.bool).triu(1)
    for block in own.blocks:
        attention = nn.MultiheadAttention(8, 2, batch_first=True).double()
        attention.in_proj_weight, attention.in_proj_bias = block.attention.weight, block.attention.bias
        attention.out_proj = block.out
        rows = []
        for row in range(3):  # real tokens only: attention of padding would be of nothing
            real = ~padding[row]
            x = tokens[row : row + 1, real]
            y = block.before(x)
            x = x + attention(y, y, y, attn_mask=hidden[: real.sum(), : real.sum()], need_weights=False)[0]
            x = x + block.narrow(nn.functional.gelu(block.widen(block.between(x))))
            rows.append(torch.cat([torch.zeros(1, int(padding[row].sum()), 8, dtype=torch.float64), x], 1))
        tokens = torch.cat(rows)
    steps = own.leave(tokens).reshape(3, context, 4, 8)
    mean, log_std = own.action_head(steps[:, :, 2]).split(2, -1)
    normal_ = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    real = mask == 1
    nll = -normal_.log_prob(batch["actions"]).sum(-1)[real].mean()
    entropy = normal_.entropy().sum(-1)[real].mean()
    bce = nn.functional.binary_cross_entropy_with_logits(
        own.cost_head(steps[:, :, 3])[..., 0][real], batch["costs"][real]
    )
    temperature = twin.temperature.rho
    loss = nll - temperature.detach().exp() * entropy + 0.02 * bce + temperature * (entropy.detach() + 2)
    parameters = [*own.parameters(), temperature]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=1e-4)
    loss.backward()
    norm = torch.sqrt(sum((p.grad**2).sum() for p in parameters if p.grad is not None))
    assert norm > 0.25  # so that the clip matters
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad.mul_(0.25 / (norm + 1e-6))
    optimizer.step()
    for name, value in twin.named_parameters():
        assert relative(dict(agent.named_parameters())[name], value) < 1e-9, name
