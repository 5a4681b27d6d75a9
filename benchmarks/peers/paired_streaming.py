"""The official stream AC(lambda) and Q(lambda) as a `Peer`, from a checkout that the user gives.

    $SUREFOOT_PEERS/sb3/bin/python benchmarks/peers/paired_streaming.py weights --algorithm stream_ac --checkout DIR \
        --file FILE --environment Hopper-v5

DIR is a checkout of mohmdelsayed/streaming-drl, CC BY-NC 4.0: it is run here, and nothing of it is in this repository.
"""

import argparse
import importlib
import sys
from typing import Any

import numpy as np
import paired_peer
import scripted_env
import torch
from paired_peer import Arrays

torch.set_num_threads(1)
AT, ENTROPY, DISCOUNT = (1, 2, 10, 1000), 0.01, 0.99
SCRIPTS = {"stream_ac": "stream_ac_continuous", "stream_q": "stream_q"}


class Streaming:
    """An agent of one of its scripts, with the script's own wrappers but for the clock."""

    def __init__(self, algorithm: str, checkout: Any) -> None:
        sys.path.insert(0, str(checkout))
        self.algorithm = algorithm
        self.script = importlib.import_module(SCRIPTS[algorithm])

    def rows(self, data: Arrays) -> Arrays:
        """Of a file only the sizes count."""
        return {name: np.asarray(data[name], np.float32) for name in ("observations", "actions", "rewards")}

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """A new agent."""
        torch.manual_seed(seed)
        self.make(rows["observations"].shape[1], rows["actions"].shape[1])

    def make(self, observations: int, actions: int) -> None:
        """With the defaults of its script."""
        kind = self.script.StreamAC if self.algorithm == "stream_ac" else self.script.StreamQ
        self.agent = kind(n_obs=observations, n_actions=actions)

    def layers(self) -> dict[str, list[list[torch.nn.Linear]]]:
        """Ours -> layers, the last of which may be two heads."""
        a = self.agent
        if self.algorithm == "stream_q":
            return {"critic": [[a.fc1_v], [a.hidden_v], [a.fc_v]]}
        p, v = a.policy_net, a.value_net
        return {
            "actor": [[p.fc_layer], [p.hidden_layer], [p.linear_mu, p.linear_std]],
            "critic": [[v.fc_layer], [v.hidden_layer], [v.linear_layer]],
        }

    def networks(self) -> Arrays:
        """By our names."""
        found = {}
        for name, layers in self.layers().items():
            for k, parts in enumerate(layers):
                found[f"{name}.weights.{k}"] = torch.cat([part.weight for part in parts]).detach().numpy().copy()
                found[f"{name}.biases.{k}"] = torch.cat([part.bias for part in parts]).detach().numpy().copy()
        return found

    @torch.no_grad()
    def take(self, networks: Arrays) -> None:
        """The other way round."""
        for name, layers in self.layers().items():
            for k, parts in enumerate(layers):
                sizes = [len(part.bias) for part in parts]
                weights = torch.from_numpy(networks[f"{name}.weights.{k}"]).split(sizes)
                biases = torch.from_numpy(networks[f"{name}.biases.{k}"]).split(sizes)
                for part, weight, bias in zip(parts, weights, biases, strict=True):
                    part.weight.copy_(weight)
                    part.bias.copy_(bias)

    def collected(self, given: Arrays) -> Arrays:
        """The loop of its scripts, with the actions that are given."""
        wrappers = importlib.import_module("normalization_wrappers")
        env = scripted_env.Scripted(self.algorithm == "stream_q")
        env = wrappers.NormalizeObservation(wrappers.ScaleReward(env, gamma=DISCOUNT))
        self.make(scripted_env.OBSERVATIONS, scripted_env.ACTIONS)
        self.take({name.removeprefix("weights/"): v for name, v in given.items() if name.startswith("weights/")})
        errors: list[float] = []
        main = self.agent.optimizer_value if self.algorithm == "stream_ac" else self.agent.optimizer
        take_step = main.step

        def step_and_note(delta: float, reset: bool = False) -> None:
            errors.append(delta)
            take_step(delta, reset=reset)

        main.step = step_and_note
        state, _ = env.reset()
        seen, found = [state], {}
        for step, (action, explored) in enumerate(zip(given["actions"], given["explored"], strict=True), 1):
            following, reward, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
            if self.algorithm == "stream_ac":
                self.agent.update_params(state, action, reward, following, over, ENTROPY)
            else:
                self.agent.update_params(state, int(action), reward, following, over, bool(explored))
            seen.append(following)
            state = following
            if step in AT:
                found |= {f"{step}/{name}": values for name, values in self.networks().items()}
            if over:
                state, _ = env.reset()
                seen.append(state)
        return {**found, "observations": np.array(seen, np.float32), "td_errors": np.array(errors, np.float32)}


def build(arguments: argparse.Namespace) -> Any:
    """One of the scripts."""
    return Streaming(arguments.algorithm, arguments.checkout)


if __name__ == "__main__":
    paired_peer.main(__doc__ or "", build)
