"""Where modules of surefoot 0.2 have gone: an old import path still works, with a note, until version 0.5.

docs/architecture.md shows the table. `surefoot.core` imports nothing of `surefoot.llm`: its old modules that only
language models use are refused with the new path, and their names in `core.policy_gradient` are found there.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import warnings

TYPE_CHECKING = False  # typing's, without its import, which `import surefoot` would wait for
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

LAST = "0.5"
"""The version in which the old paths are gone."""
MOVED = {
    "cli.auto": "cli.support.auto",
    "cli.config": "cli.support.config",
    "cli.configfile": "cli.support.config_file",
    "cli.dataset_files": "cli.support.dataset_files",
    "cli.dataset_making": "cli.support.dataset_making",
    "cli.demo": "cli.support.demo",
    "cli.gather": "cli.results",
    "cli.grammar": "cli.support.grammar",
    "cli.helptext": "cli.support.help_text",
    "cli.imports": "cli.import_sb3",
    "cli.launchers": "cli.support.launchers",
    "cli.listing": "cli.support.listing",
    "cli.output": "cli.support.output",
    "cli.planning": "cli.support.planning",
    "cli.progress": "cli.support.progress",
    "cli.received": "cli.support.file_overrides",
    "cli.rollouts": "cli.rollout",
    "cli.sweep": "cli.support.sweep",
    "core.actions": "core.base.actions",
    "core.activations": "core.nn.activations",
    "core.actor": "core.actors.actor",
    "core.adjoint": "core.losses.adjoint",
    "core.agent": "core.engine.agent",
    "core.attribute_planner": "core.actors.attribute_planner",
    "core.attributes": "core.losses.attributes",
    "core.capture": "core.engine.capture",
    "core.chains": "core.actors.chains",
    "core.checkpoint": "core.base.checkpoint",
    "core.children": "core.base.children",
    "core.chunk_actors": "core.actors.chunk_actors",
    "core.chunks": "core.actors.chunks",
    "core.cluster": "runs.processes.cluster",
    "core.coefficients": "core.losses.policy_gradient.coefficients",
    "core.control_loop": "core.policy.control_loop",
    "core.cpp": "core.policy.cpp",
    "core.cpp_equations": "core.policy.cpp_equations",
    "core.cpp_runtime": "core.policy.cpp_runtime",
    "core.denoising_chain": "core.actors.denoising_chain",
    "core.diffusion": "core.actors.diffusion",
    "core.distributions": "core.losses.distributions",
    "core.divergences": "core.losses.policy_gradient.divergences",
    "core.dropout": "core.base.dropout",
    "core.encoders": "core.nn.encoders",
    "core.ensembles": "core.nn.ensembles",
    "core.errors": "core.base.errors",
    "core.executor": "core.execution.executor",
    "core.export": "core.policy.export",
    "core.family": "core.actors.family",
    "core.features": "core.engine.features",
    "core.files": "core.base.files",
    "core.flow": "core.losses.flow",
    "core.flow_actor": "core.actors.flow_actor",
    "core.flow_chains": "core.actors.flow_chains",
    "core.greedy_actor": "core.actors.greedy_actor",
    "core.guidance": "core.execution.guidance",
    "core.histories": "core.actors.histories",
    "core.hot_loop": "core.engine.hot_loop",
    "core.implicit_maxima": "core.losses.implicit_maxima",
    "core.inference": "core.execution.inference",
    "core.kernels": "core.nn.native.kernels",
    "core.learner": "core.engine.learner",
    "core.masked": "core.losses.masked",
    "core.memory": "core.actors.memory",
    "core.memory_actors": "core.actors.memory_actors",
    "core.native": "core.nn.native.native",
    "core.networks": "core.nn.networks",
    "core.noise_networks": "core.nn.noise_networks",
    "core.noise_transformer": "core.nn.noise_transformer",
    "core.noise_unet": "core.nn.noise_unet",
    "core.normalizer": "core.nn.normalizer",
    "core.optimizer": "core.engine.optimizer",
    "core.options": "core.base.options",
    "core.order": "core.engine.order",
    "core.overlap": "core.actors.overlap",
    "core.parameters": "core.engine.parameters",
    "core.policy_gradient": "core.losses.policy_gradient",
    "core.random": "core.base.random",
    "core.rates": "core.base.rates",
    "core.ratios": "core.losses.policy_gradient.ratios",
    "core.received": "core.policy.policy_file",
    "core.residual": "core.nn.residual",
    "core.return_actor": "core.actors.return_actor",
    "core.returns": "core.losses.returns",
    "core.schema": "core.base.schema",
    "core.share": "core.engine.share",
    "core.simplices": "core.nn.simplices",
    "core.single_action": "core.policy.single_action",
    "core.single_flow": "core.policy.single_flow",
    "core.smoothness": "core.engine.smoothness",
    "core.sources": "core.engine.sources",
    "core.spec": "core.base.spec",
    "core.steered": "core.actors.steered",
    "core.surrogates": "core.losses.policy_gradient.surrogates",
    "core.tape": "core.nn.native.tape",
    "core.tape_operations": "core.nn.native.tape_operations",
    "core.temperature": "core.nn.temperature",
    "core.timeline": "core.execution.timeline",
    "core.transduction": "core.nn.transduction",
    "core.transformer": "core.actors.transformer_actor",
    "core.two_hot": "core.nn.two_hot",
    "core.unet": "core.nn.unet",
    "core.unique_keys": "core.base.unique_keys",
    "core.unpacking": "core.base.unpacking",
    "core.vae": "core.actors.vae",
    "core.value_learning": "core.losses.value_learning",
    "core.velocity": "core.nn.velocity",
    "evaluation.side_by_side": "evaluation.curves",
    "experiment.acting_trainer": "runs.trainers.online",
    "experiment.algorithms": "runs.algorithms",
    "experiment.checkpoints": "runs.run",
    "experiment.collectors": "runs.processes.collectors",
    "experiment.extending": "runs.extend",
    "experiment.folders": "runs.folders",
    "experiment.initialise": "runs.warm_start",
    "experiment.inputs": "runs.inputs",
    "experiment.live": "runs.loggers",
    "experiment.loggers": "runs.loggers",
    "experiment.machine": "runs.machine",
    "experiment.margins": "runs.inputs",
    "experiment.model": "api.model",
    "experiment.offline_trainer": "runs.trainers.offline",
    "experiment.plan": "runs.plan",
    "experiment.run": "runs.run",
    "experiment.sharing": "runs.processes.sharing",
    "experiment.stopping": "runs.processes.stopping",
    "experiment.streaming_trainer": "runs.trainers.streaming",
    "experiment.summary": "runs.summary",
    "experiment.telling": "runs.progress_events",
    "experiment.trainer": "runs.trainers.trainer",
    "experiment.training": "runs.start",
    "experiment.trust": "runs.trust",
    "experiment.watch": "runs.trainers.alarm_monitor",
    "experiment.watchdog": "runs.processes.watchdog",
    "experiment.worker": "runs.processes.worker",
    "experiment.workers": "runs.processes.workers",
    "offline.fitted_q": "offline.evaluation.fitted_q",
    "offline.least_squares_q": "offline.evaluation.least_squares_q",
    "model_based.alarm": "model_based.base.alarm",
    "model_based.cocoa_around": "model_based.cocoa",
    "model_based.signals": "model_based.base.signals",
    "streaming.actions": "streaming.exploration",
    "streaming.behaviour": "streaming.exploration",
    "streaming.buffers": "streaming.streams",
    "streaming.config": "streaming.traces",
    "streaming.kernel": "streaming.streams",
    "streaming.loop": "streaming.agent",
    "streaming.noise": "streaming.exploration",
    "streaming.obgd": "streaming.traces",
    "streaming.phases": "streaming.streams",
    "online.agents": "online.base.agents",
    "online.blocks": "online.loops.blocks",
    "online.dynamics_gap": "online.base.dynamics_gap",
    "online.experience": "online.loops.experience",
    "online.hybrid": "online.base.hybrid",
    "online.loop": "online.loops.loop",
    "online.minibatches": "online.loops.minibatches",
    "online.model_replay": "online.loops.model_replay",
    "online.natural_gradient": "online.trpo",
    "online.off_policy": "online.loops.off_policy",
    "online.on_policy": "online.loops.on_policy",
    "online.on_policy_agent": "online.base.on_policy_agent",
    "online.on_policy_config": "online.base.on_policy_config",
    "online.pretrained": "online.base.pretrained",
    "online.replay": "online.loops.replay",
    "online.team": "online.remote.team",
    "online.team_blocks": "online.remote.team_blocks",
    "online.team_experience": "online.remote.team_experience",
    "safe.constrained": "safe.constraint.constrained",
    "safe.cost_critics": "safe.constraint.cost_critics",
    "safe.costs": "safe.constraint.costs",
    "safe.cpp": "safe.filters.cpp",
    "safe.feasibility": "safe.fisor",
    "safe.filtered": "safe.filters.filtered",
    "safe.fisor_config": "safe.fisor",
    "safe.margins": "safe.filters.margins",
    "safe.model": "safe.filters.model",
    "safe.multipliers": "safe.constraint.multipliers",
    "safe.projection": "safe.filters.safety_filter",
    "safe.signal": "safe.constraint.signal",
    "tools.actors": "play.actors",
    "tools.auto": "studies.auto",
    "tools.certify": "safety.certify",
    "tools.compare": "studies.compare",
    "tools.execute": "play.execute",
    "tools.film": "play.film",
    "tools.generate": "runs.embedded",
    "tools.language": "language.plan",
    "tools.language_runs": "language.runs",
    "tools.latency": "play.latency",
    "tools.leaderboard": "studies.leaderboard",
    "tools.lerobot_policy": "interop.lerobot_policy",
    "tools.plan": "play.plan",
    "tools.reach": "safety.reach",
    "tools.sb3": "interop.sb3",
    "tools.select": "studies.select",
    "tools.select_behaviour": "studies.select_behaviour",
    "tools.select_model": "studies.select_model",
    "tools.select_picture": "studies.select_picture",
    "tools.shield": "safety.shield",
    "tools.states": "studies.states",
    "tools.suites": "runs.recorded",
    "tools.tune": "studies.tune",
    "tools.variants": "safety.variants",
    "world_models.anchors": "world_models.ensemble.anchors",
    "world_models.block_gru": "world_models.recurrent.block_gru",
    "world_models.elites": "world_models.latent.elites",
    "world_models.ensemble_planner": "world_models.ensemble.planner",
    "world_models.ensemble_rollout": "world_models.ensemble.rollout",
    "world_models.exact": "world_models.known.exact",
    "world_models.latent_planner": "world_models.latent.planner",
    "world_models.learning": "world_models.ensemble.learning",
    "world_models.learning_rows": "world_models.ensemble.rows",
    "world_models.mismatch": "world_models.ensemble.mismatch",
    "world_models.mujoco": "world_models.known.mujoco",
    "world_models.recurrent_actor": "world_models.recurrent.actor",
    "world_models.renormalise": "world_models.ensemble.renormalise",
    "world_models.rewards": "world_models.known.rewards",
    "world_models.rssm": "world_models.recurrent.rssm",
    "world_models.terminations": "world_models.known.terminations",
    "world_models.token_dynamics": "world_models.tokens.dynamics",
    "world_models.token_transformer": "world_models.tokens.transformer",
    "world_models.trajectory_planner": "world_models.tokens.planner",
    "world_models.uncertainty": "world_models.ensemble.uncertainty",
}
"""Old path -> new path, both below `surefoot`."""
PARTS = {
    "cli.config": ("cli.support.presets",),
    "cli.configfile": ("cli.support.presets",),
    "cli.rollouts": ("cli.certify", "cli.support.episodes", "cli.support.filters"),
    "core.chunk_actors": ("core.policy.chunk_playing",),
    "core.policy_gradient": (
        "llm.losses.advantages",
        "llm.losses.regressions",
        "llm.losses.reward_shaping",
        "llm.losses.selection",
    ),
    "core.transformer": ("core.nn.transformer",),
    "experiment.trainer": ("runs.trainers.choose",),
    "experiment.training": ("api.fit", "runs.machine", "runs.processes.workers", "runs.progress_events", "runs.victim"),
    "experiment.worker": ("runs.processes.stopping",),
    "experiment.workers": ("runs.machine", "runs.progress_events"),
}
"""Of modules that were divided: where the names are that the new path has not."""
REFUSED = {
    "core.advantages": "llm.losses.advantages",
    "core.regressions": "llm.losses.regressions",
    "core.reward_shaping": "llm.losses.reward_shaping",
    "core.selection": "llm.losses.selection",
}
"""The same of those that an import by the old path does not reach any more."""
REUSED = {"cli.results": "cli.report"}
"""The same of those whose old path is another module's now."""


class OldPaths:
    """Finds modules by the paths that they had: the module that is imported is the one of the new path."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of an old path; None for any other name.

        Raises:
            ModuleNotFoundError: names the new path of a module that old code has to import by it.
        """
        top, _, old = name.partition(".")
        if top != "surefoot":
            return None
        if old in REFUSED:
            raise ModuleNotFoundError(f"{name} is surefoot.{REFUSED[old]} now: import it by that path", name=name)
        loader: Any = self
        if old in ("experiment", "tools"):
            return importlib.machinery.ModuleSpec(name, loader, is_package=True)
        return importlib.machinery.ModuleSpec(name, loader) if old in MOVED else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Nothing: python makes an empty one, which is replaced."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the new path in the place of the empty one; a package that is gone stays empty.

        A module that was divided stays too, and gives the names of its parts.
        """
        name = module.__name__
        old = name.partition(".")[2]
        if old not in MOVED:
            module.__path__ = []
            return
        new = f"surefoot.{MOVED[old]}"
        warnings.warn(f"{name} is {new} now; the old path is gone in version {LAST}", FutureWarning, stacklevel=2)
        if old not in PARTS:
            sys.modules[name] = importlib.import_module(new)
            return

        def name_of_a_part(wanted: str) -> object:
            for part in (MOVED[old], *PARTS[old]):
                found = importlib.import_module(f"surefoot.{part}")
                if hasattr(found, wanted):
                    return getattr(found, wanted)
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}; it is {new} now")

        vars(module)["__getattr__"] = name_of_a_part


def install() -> None:
    """Let old paths be found, after all others."""
    if not any(isinstance(finder, OldPaths) for finder in sys.meta_path):
        finder: Any = OldPaths()
        sys.meta_path.append(finder)
