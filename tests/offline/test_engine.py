"""The engine's promises for every algorithm: stacked or alone, kernels or plain, stopped or not: the same numbers."""

from __future__ import annotations

import shutil

import pytest
import torch
from problems import VARIANTS, agents, learner, random_store, relative
from refusals import refused
from torch import Tensor

from surefoot.core.actors.goal_actor import GoalActor
from surefoot.core.base.errors import CheckpointError, Code, DivergenceError
from surefoot.core.engine.agent import Agent
from surefoot.core.engine.capture import Capture, Graphed
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.dense import dense
from surefoot.core.nn.native import kernels as layers
from surefoot.core.nn.native import native
from surefoot.offline import ALGORITHMS


def drawn_rows(seeds: list[int], population: int, rows: int) -> Uniform:
    """The rows that a `Learner` draws uniformly."""
    source = Uniform(lambda indices: {}, population)
    source.bind(seeds, rows, torch.device("cpu"))
    return source


GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")]
SEEDS = [3, 0, 17]


def first_full(variant: str) -> int:
    """The first step at which all its updates are due."""
    return max(getattr(entry, "every", 1) for entry in agents(variant, [0])[0].updates())


def looser(variant: str, bound: float) -> float:
    """Ten times for qrl, whose distances are small differences of large numbers, and whose gradients jump at ties."""
    return 10 * bound if variant == "qrl" else bound


def worst(found: Learner, position: int, expected: Learner, place: int = 0) -> tuple[float, str]:
    """Largest relative difference over all tensors of two agents, and where it is."""
    own, other = found.state(position), expected.state(place)
    assert own.keys() == other.keys()
    return max((relative(own[name].cpu(), other[name].cpu()), name) for name in own)


def moved(trained: Learner, before: Agent) -> bool:
    """Whether training changed every network of the agent."""
    start = dict(before.named_parameters())
    now = trained.agents_parameters(0)
    return all(
        any(not torch.equal(now[f].cpu(), start[f]) for f in network.names) for network in trained.networks.values()
    )


LONG = ("iql", "cql", "td3bc", "fql-chunk", "riql-k3")
"""Of each way of updating one: for so many steps that small differences would have grown."""


@pytest.mark.parametrize("variant", VARIANTS)
def test_stacked_seeds_equal_each_seed_alone_in_float64(variant: str) -> None:
    store, steps = random_store(torch.float64), 60 if variant in LONG else max(8, first_full(variant))
    together = learner(agents(variant, SEEDS), SEEDS, store, torch.float64)
    report = together.run(steps)
    assert together.stacked
    assert moved(together, agents(variant, SEEDS[:1])[0].double())
    for position, seed in enumerate(SEEDS):
        alone = learner(agents(variant, [seed]), [seed], store, torch.float64)
        own = alone.run(steps)
        assert not alone.stacked
        difference, where = worst(together, position, alone)
        assert difference < looser(variant, 1e-9), where
        assert {name: values[position] for name, values in report.items()} == pytest.approx(
            {name: value for name, (value,) in own.items()}, rel=1e-8, abs=1e-10
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_stacked_seeds_equal_each_seed_alone_after_one_step_in_float32(variant: str) -> None:
    store, steps = random_store(), first_full(variant)
    together = learner(agents(variant, SEEDS), SEEDS, store)
    together.run(steps)
    for position, seed in enumerate(SEEDS):
        alone = learner(agents(variant, [seed]), [seed], store)
        alone.run(steps)
        names = together.agents_parameters(position)
        for name, value in alone.agents_parameters(0).items():
            assert relative(names[name], value) < 3e-5, name


@pytest.mark.skipif(native.library() is None, reason="no native module")
@pytest.mark.parametrize("variant", VARIANTS)
def test_kernels_equal_plain_pytorch_after_one_step_in_float32(variant: str) -> None:
    store, steps = random_store(), first_full(variant)
    fast = learner(agents(variant, [3]), [3], store, kernels=True)
    plain = learner(agents(variant, [3]), [3], store)
    own, other = fast.run(steps), plain.run(steps)
    assert fast.slots is not None
    assert own == {name: pytest.approx(value, rel=1e-4, abs=1e-5) for name, value in other.items()}
    names = fast.agents_parameters(0)
    for name, value in plain.agents_parameters(0).items():
        assert relative(names[name], value) < looser(variant, 3e-5), name


@pytest.mark.skipif(native.library() is None, reason="no native module")
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_over_kernels_equal_plain_ones(variant: str) -> None:
    """Adam's first step hides the size of a gradient, so gradients are compared themselves."""
    store = random_store()
    found = []
    for kernels in (True, False):
        trained = learner(agents(variant, [3]), [3], store, kernels=kernels)
        trained.run(2)
        found.append({name: network.gradient.clone() for name, network in trained.networks.items()})
    for name, gradient in found[1].items():
        assert relative(found[0][name], gradient) < looser(variant, 1e-4) or not gradient.any(), name
        assert gradient.any() == (not name.startswith(("target", "average")))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(variant: str) -> None:
    """Stopped after its first step, before some updates were ever due, and again in the middle."""
    store = random_store()

    def new() -> Learner:
        return learner(agents(variant, [3]), [3], store, kernels=True, planned_steps=30)

    whole, parts = new(), [new() for _ in range(3)]
    whole.run(30)
    for (start, stop), part, following in zip([(0, 1), (1, 17)], parts, parts[1:], strict=False):
        part.run(stop - start)
        following.restore([{name: value.clone() for name, value in part.state(0).items()}], stop)
    parts[-1].run(13)
    expected = whole.state(0)
    assert all(torch.equal(value, expected[name]) for name, value in parts[-1].state(0).items())


def test_a_resumed_stacked_run_equals_an_uninterrupted_one_bit_for_bit() -> None:
    store = random_store()
    whole, before, after = (learner(agents("td3bc", SEEDS), SEEDS, store) for _ in range(3))
    whole.run(40)
    before.run(17)
    after.restore([{n: v.clone() for n, v in before.state(i).items()} for i in range(3)], 17)
    after.run(23)
    for position in range(3):
        expected = whole.state(position)
        assert all(torch.equal(value, expected[name]) for name, value in after.state(position).items())


@pytest.mark.parametrize(
    ("saved", "wanted"), [("iql", "riql"), ("td3bc", "bc"), ("bc", "iql"), ("iql", "iql-deterministic")]
)
def test_a_checkpoint_of_another_algorithm_is_refused(saved: str, wanted: str) -> None:
    store = random_store()
    state = learner(agents(saved, [0]), [0], store).state(0)
    with pytest.raises(CheckpointError, match=f"does not fit {VARIANTS[wanted][0]} as configured"):
        learner(agents(wanted, [0]), [0], store).restore([state], 5)


def test_a_checkpoint_with_other_network_sizes_is_refused() -> None:
    store = random_store()
    state = learner(agents("iql", [0], hidden=(8, 7)), [0], store).state(0)
    with pytest.raises(CheckpointError, match="other network sizes"):
        learner(agents("iql", [0]), [0], store).restore([state], 5)


@pytest.mark.parametrize("seeds", [[5], [2, 5, 3]])
@pytest.mark.parametrize("algorithm", ["iql", "riql", "td3bc"])
def test_a_reward_that_is_not_finite_stops_training_by_name(algorithm: str, seeds: list[int]) -> None:
    rewards = torch.randn(2000, dtype=torch.float64)
    rewards[1234] = torch.nan
    store = random_store(rows=2000, rewards=rewards)
    drawn = drawn_rows(seeds, 2000, 16)
    hits = ((drawn.rows(step) == 1234).any(1) for step in range(10_000))
    step, hit = next((number, row) for number, row in enumerate(hits, start=1) if row.any())
    seed = seeds[int(hit.nonzero()[0])]
    trained = learner(agents(algorithm, seeds), seeds, store)
    with pytest.raises(DivergenceError, match=rf"{algorithm}: critic_loss became nan at step {step} \(seed {seed}\)"):
        trained.run(step + 20)


@pytest.mark.parametrize("variant", VARIANTS)
def test_extracted_agents_act_as_in_the_learner_and_make_policies(variant: str) -> None:
    trained = learner(agents(variant, SEEDS), SEEDS, random_store())
    trained.run(3)
    observations = torch.randn(64, 3)  # choices of two seeds differ in some of them
    for position in range(3):
        agent = trained.extract(position)
        own = trained.agents_parameters(position)
        assert all(torch.equal(value, own[name]) for name, value in agent.state_dict().items())
        if isinstance(agent.actor, GoalActor):
            agent.actor.fix(torch.tensor([0.3, -0.2, 0.7]))
        noise = torch.randn(64, agent.actor.noise_dim) if agent.actor.always_samples else None
        acted = agent.act(observations, noise)
        expected = acted.argmax(-1) if agent.spec.discrete else acted  # a policy gives the numbers of choices
        torch.testing.assert_close(agent.policy()(observations, noise), expected)
    several = [trained.extract(position) for position in range(2)]
    for agent in several:
        if isinstance(agent.actor, GoalActor):
            agent.actor.fix(torch.tensor([0.3, -0.2, 0.7]))
    one, other = (agent.act(observations, noise) for agent in several)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_seeds_give_equal_agents_and_others_differ(variant: str) -> None:
    one, same, other = agents(variant, [4, 4, 5])
    assert all(torch.equal(value, same.state_dict()[name]) for name, value in one.state_dict().items())
    pairs = zip(one.actor.parameters(), other.actor.parameters(), strict=True)
    assert not all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_fresh_leaves_torchs_generator_alone() -> None:
    agent = agents("iql", [0])[0]
    torch.manual_seed(1)
    expected = torch.randn(3)
    torch.manual_seed(1)
    agent.fresh(9)
    assert torch.equal(torch.randn(3), expected)


@pytest.mark.parametrize(("variant", "seeds"), [*((v, [0]) for v in VARIANTS), ("iql", [0, 1]), ("fql", [0, 1])])
def test_mixed_precision_runs_stays_finite_and_keeps_float32_parameters(variant: str, seeds: list[int]) -> None:
    store = random_store()
    mixed = learner(agents(variant, seeds), seeds, store, mixed_precision=True)
    exact = learner(agents(variant, seeds), seeds, store)
    report, plain = mixed.run(10), exact.run(10)
    for name in (update.name for update in mixed.updates):
        assert report[name] == pytest.approx(plain[name], rel=0.1, abs=0.05)
    for network in mixed.networks.values():
        assert network.value.dtype == torch.float32
        assert network.value.isfinite().all()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU, and there is none")
def test_compiled_losses_give_the_same_numbers_with_or_without_kernels() -> None:
    store = random_store()
    plain = learner(agents("bc", [3]), [3], store)  # one loss: each takes seconds to compile
    compiled = learner(agents("bc", [3]), [3], store, compiled=True, kernels=True)
    plain.run(5)
    compiled.run(5)
    assert compiled.eager_because() == {"all": "losses are compiled"}  # and take the compiler's own products
    found = compiled.agents_parameters(0)
    for name, value in plain.agents_parameters(0).items():
        assert relative(found[name], value) < 1e-5, name


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        ("iql", {"expectile": 1.0}, ("expectile", "range")),
        ("iql", {"temperature": -1.0}, ("temperature", "range")),
        ("iql", {"dropout": 1.0}, ("dropout", "range")),
        ("iql", {"order": "backwards"}, ("order", "choice")),
        ("iql", {"actor": "flow"}, ("actor", "choice")),
        ("iql", {"expectil": 0.8}, ("expectil", "unknown")),
        ("iql", {"preset": "best"}, ("preset", "choice")),
        ("riql", {"sigma": 0.0}, ("sigma", "range")),
        ("riql", {"quantile": 1.5}, ("quantile", "range")),
        ("riql", {"critics": 0}, ("critics", "range")),
        ("td3bc", {"alpha": -1.0}, ("alpha", "range")),
        ("td3bc", {"actor_every": 0}, ("actor_every", "range")),
        ("bc", {"fraction": 0.0}, ("fraction", "range")),
    ],
)
def test_options_out_of_range_are_refused_by_name(algorithm: str, options: dict, message: tuple[str, Code]) -> None:
    with refused(*message):
        ALGORITHMS[algorithm].configure(**options)


@pytest.mark.parametrize("variant", [*LONG, "rebrac"])
def test_layers_and_gradients_as_on_a_gpu_train_alike(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code that a GPU runs beside a processor's own: layers, where gradients are stored."""

    def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if weight.dim() == 2:
            return dense(inputs, weight, bias)
        return torch.matmul(inputs, weight.transpose(-1, -2)) + bias.unsqueeze(-2)

    class Elsewhere(Learner):
        """Stores gradients as for a GPU."""

        def _gradients(self, index: int, batch: object, noise: dict[str, Tensor]) -> dict[str, Tensor]:
            self.device = torch.device("meta")  # is no processor
            try:
                return super()._gradients(index, batch, noise)
            finally:
                self.device = torch.device("cpu")

    here = learner(agents(variant, SEEDS), SEEDS, random_store(torch.float64), torch.float64)
    there = learner(agents(variant, SEEDS), SEEDS, random_store(torch.float64), torch.float64)
    there.__class__ = Elsewhere
    expected = here.run(30)
    monkeypatch.setattr(layers, "linear", linear)
    report = there.run(30)
    for position in range(len(SEEDS)):
        difference, where = worst(there, position, here, position)
        assert difference < 1e-9, where
    assert report == {name: pytest.approx(value, rel=1e-8, abs=1e-10) for name, value in expected.items()}


@pytest.mark.parametrize("variant", [pytest.param(v, marks=GPU) for v in VARIANTS])
def test_stacked_on_a_gpu_equals_the_cpu(variant: str) -> None:
    steps = 30
    there = learner(
        agents(variant, SEEDS), SEEDS, random_store(torch.float64, device="cuda"), torch.float64, device="cuda"
    )
    here = learner(agents(variant, SEEDS), SEEDS, random_store(torch.float64), torch.float64)
    report, expected = there.run(steps), here.run(steps)
    for position in range(len(SEEDS)):
        difference, where = worst(there, position, here, position)
        assert difference < 1e-4, where
    assert report == {name: pytest.approx(value, rel=1e-4, abs=1e-6) for name, value in expected.items()}


@pytest.mark.parametrize("variant", [pytest.param(v, marks=GPU) for v in VARIANTS])
def test_replayed_cuda_graphs_equal_eager_steps(variant: str) -> None:
    store = random_store(device="cuda")
    graphed = learner(agents(variant, SEEDS), SEEDS, store, device="cuda")
    steps = 7 * graphed.steps_per_graph + 5  # some at once, and the last by themselves
    graphed.run(steps)
    assert isinstance(graphed.capture, Graphed)
    graphs = [*graphed.capture._graphs.values(), *graphed.capture._of_several.values()]
    assert any(graph.graph is not None for graph in graphs)
    eager = learner(agents(variant, SEEDS), SEEDS, store, device="cuda")
    eager.capture = Capture(eager.capture.gather, eager.capture.work, "to compare")
    eager.run(steps)
    for position in range(len(SEEDS)):
        difference, where = worst(graphed, position, eager, position)
        assert difference < 1e-4, where
