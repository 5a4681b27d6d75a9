"""pytorch-mppi's batched MPPI on a cart-pole in plain torch, one line of JSON: plans a second of CPU time."""

import argparse
import json
import math
import os
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from pytorch_mppi import MPPI_Batched

GRAVITY, CART, POLE, LENGTH, STEP = 9.8, 1.0, 0.1, 0.5, 0.02


def slope(state: torch.Tensor, force: torch.Tensor) -> torch.Tensor:
    """Time derivative of (N, 4) position, velocity, angle, rate under (N,) forces; no friction, no wind."""
    _, velocity, angle, rate = state.unbind(1)
    sine, cosine = torch.sin(angle), torch.cos(angle)
    push = (force + POLE * LENGTH * rate**2 * sine) / (CART + POLE)
    pole = (GRAVITY * sine - cosine * push) / (LENGTH * (4 / 3 - POLE * cosine**2 / (CART + POLE)))
    cart = push - POLE * LENGTH * pole * cosine / (CART + POLE)
    return torch.stack([velocity, cart, rate, pole], 1)


def euler(state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """A step of the balancing task."""
    return state + STEP * slope(state, action[:, 0])


def runge_kutta(state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """A step of the swing-up."""
    force = action[:, 0]
    k1 = slope(state, force)
    k2 = slope(state + STEP / 2 * k1, force)
    k3 = slope(state + STEP / 2 * k2, force)
    k4 = slope(state + STEP * k3, force)
    return state + STEP / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def lost(state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Cost of the balancing task: 1 where the pole or the cart is off."""
    return ((state[:, 0].abs() > 2.4) | (state[:, 2].abs() > math.radians(12))).float()


def low(state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Cost of the swing-up: its reward with a minus."""
    upright = (1 + torch.cos(state[:, 2])) / 2
    centred = (1 + 0.1 ** ((state[:, 0] / 2) ** 2)) / 2
    gentle = (4 + (1 - (action[:, 0] / 10) ** 2).clamp(min=0)) / 5
    slow = (1 + 0.1 ** ((state[:, 3] / 5) ** 2)) / 2
    return -upright * centred * gentle * slow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", choices=["balance", "swingup"], default="balance")
    parser.add_argument("--states", type=int, default=8)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--horizon", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dynamics, cost = (euler, lost) if arguments.system == "balance" else (runge_kutta, low)
    planner = MPPI_Batched(
        dynamics,
        cost,
        4,
        torch.tensor([[25.0]]),
        arguments.states,
        num_samples=arguments.samples,
        horizon=arguments.horizon,
        lambda_=0.1,
        u_min=torch.tensor([-10.0]),
        u_max=torch.tensor([10.0]),
    )
    states = 0.05 * torch.randn(arguments.states, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        planner.command(states)
        start, cpu, calls = time.perf_counter(), time.process_time(), 0
        while time.process_time() - cpu < arguments.seconds or calls < 3:
            planner.command(states)
            calls += 1
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    plans = calls * arguments.states
    print(json.dumps({"plans_per_cpu_second": plans / cpu, "plans_per_second": plans / wall}), flush=True)


if __name__ == "__main__":
    main()
