"""Where the jobs of a sweep run: `hydra/launcher=joblib`, `ray`, `submitit_slurm` or `submitit_local`.

joblib's is Hydra's own, submitit's is hydra-submitit-launcher (extra `slurm`). That of Ray is here: Hydra's asks for
packages older than ours and waits for its jobs in their order, so that one dead worker loses the sweep.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

from hydra.plugins.launcher import Launcher

from surefoot.cli.support import grammar, output
from surefoot.core.base.errors import ConfigError, MissingExtraError, SurefootError, nearest
from surefoot.runs.processes import cluster

TARGET = "hydra_plugins.surefoot.RayLauncher"
"""By which Hydra knows our launcher: it takes none whose name begins otherwise."""
LAUNCHERS = ("basic", "joblib", "ray", "submitit_local", "submitit_slurm")
REMOTE = ("ray", "submitit_slurm")
NEEDS = {
    "ray": ("ray.actor", "ray"),
    "submitit_local": ("hydra_plugins.hydra_submitit_launcher", "slurm"),
    "submitit_slurm": ("hydra_plugins.hydra_submitit_launcher", "slurm"),
}
"""Launcher -> package and the extra that brings it."""


@dataclasses.dataclass
class RayLauncherConf:
    """Settings after `hydra.launcher.`"""

    _target_: str = TARGET
    address: str | None = None  # of a cluster, or auto; none: Ray on this machine alone
    cpus: float = 1  # that a job takes; a job trains its seeds side by side on as many
    gpus: float = 0  # likewise
    resources: dict[str, Any] = dataclasses.field(default_factory=dict)  # more that a job asks for
    retries: int = 3  # times that a job is restarted whose worker or machine has died
    init: dict[str, Any] = dataclasses.field(default_factory=dict)  # more arguments of ray.init


def check(overrides: Sequence[str]) -> None:
    """Refuse a launcher that is unknown or not installed, before anything is written.

    Raises:
        ConfigError: unknown.
        MissingExtraError: not installed.
    """
    for item in grammar.parse(overrides):
        if item.key != "hydra/launcher":
            continue
        name = item.values[0] if len(item.values) == 1 else ""
        if name not in LAUNCHERS:
            raise ConfigError(f"{item.text}: {nearest(name, list(LAUNCHERS))}")
        module, extra = NEEDS.get(name, ("hydra", ""))
        try:
            there = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            there = False
        if not there:
            package = module.removesuffix(".actor").rpartition(".")[2].replace("_", "-")
            raise MissingExtraError(package, extra, f"hydra/launcher={name}")


def elsewhere(overrides: Sequence[str]) -> bool:
    """Whether the launcher may carry jobs out on another machine, which may have what this one lacks."""
    return any(item.key == "hydra/launcher" and item.values[0] in REMOTE for item in grammar.parse(overrides))


@functools.cache
def register() -> None:
    """Make Hydra know our launcher."""
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins

    ConfigStore.instance().store(group="hydra/launcher", name="ray", node=RayLauncherConf, provider="surefoot")
    Plugins.instance().class_name_to_class[TARGET] = RayLauncher


class RayLauncher(Launcher):
    """Each job a task of Ray, carried out in the directory in which the sweep was started.

    A job whose worker or machine dies is restarted, and continues in its folder.
    """

    def __init__(self, **settings: Any) -> None:
        """Take the settings of `RayLauncherConf`."""
        self.settings = RayLauncherConf(**settings)

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        """What Hydra tells a launcher before the first job."""
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[Any]:
        """Carry the jobs out; what Hydra calls their returns, in their order.

        Raises:
            SurefootError: Ray did not begin, or the worker of a job died too often.
        """
        from hydra.core.singleton import Singleton
        from omegaconf import OmegaConf

        s = self.settings
        own: Any = OmegaConf.to_container(s.init) if OmegaConf.is_config(s.init) else s.init
        more: Any = OmegaConf.to_container(s.resources) if OmegaConf.is_config(s.resources) else s.resources
        started = cluster.started()
        ray = cluster.begin("hydra/launcher=ray", address=s.address, settings=own, notify=_say)
        task = ray.remote(num_cpus=s.cpus, num_gpus=s.gpus, resources=more, max_retries=0)(carry_out)
        state, threads = Singleton.get_state(), max(1, int(s.cpus))
        shared = ray.put((self.hydra_context, self.task_function, self.config, state, os.getcwd(), threads))
        left = {initial_job_idx + k: s.retries for k in range(len(job_overrides))}
        returns: dict[int, Any] = {}
        waiting = {}
        try:
            for number in left:
                waiting[task.remote(shared, list(job_overrides[number - initial_job_idx]), number)] = number
            while waiting:
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                number = waiting.pop(done)
                try:
                    returns[number] = ray.get(done)
                except ray.exceptions.RayError as error:
                    if left[number] == 0 or isinstance(error, ray.exceptions.RayTaskError):
                        raise
                    left[number] -= 1
                    _say(f"job {number}: its worker died ({type(error).__name__}); it continues in another")
                    again = task.remote(shared, list(job_overrides[number - initial_job_idx]), number)
                    waiting[again] = number
        except ray.exceptions.RayError as error:
            raise SurefootError(
                f"job {number}: {type(error).__name__}: {str(error).strip().splitlines()[0]}"
            ) from error
        finally:
            for reference in waiting:
                with contextlib.suppress(Exception):
                    ray.cancel(reference, force=True)
            if not started:
                ray.shutdown()
        return [returns[number] for number in sorted(returns)]


def _say(text: str) -> None:
    output.say(text, stderr=True)


def carry_out(shared: tuple[Any, ...], overrides: list[str], number: int) -> Any:
    """One job, in a worker of Ray."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.singleton import Singleton
    from hydra.core.utils import run_job, setup_globals
    from omegaconf import open_dict

    hydra_context, task_function, config, state, folder, threads = shared
    os.environ["SUREFOOT_CORES"] = str(threads)
    os.chdir(folder)
    setup_globals()
    Singleton.set_state(state)
    composed = hydra_context.config_loader.load_sweep_config(config, overrides)
    with open_dict(composed):
        composed.hydra.job.id = f"{composed.hydra.job.name}_{number}"
        composed.hydra.job.num = number
    HydraConfig.instance().set_config(composed)
    return run_job(
        hydra_context=hydra_context,
        config=composed,
        task_function=task_function,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
