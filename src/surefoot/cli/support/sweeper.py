"""A sweeper that carries out some of the jobs of Hydra's own: not those that are finished, nor those given up."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
from typing import Any

from hydra.plugins.sweeper import Sweeper
from omegaconf import OmegaConf

TARGET = "hydra_plugins.surefoot.PartSweeper"
"""By which Hydra knows our sweeper: it takes none whose name begins otherwise."""
NAME = "surefoot_part"


@dataclasses.dataclass
class PartSweeperConf:
    """Settings after `hydra.sweeper.`: those of Hydra's own, and which jobs."""

    _target_: str = TARGET
    max_batch_size: int | None = None
    params: dict[str, str] | None = None
    numbers: list[int] = dataclasses.field(default_factory=list)  # of the jobs that are carried out


class PartSweeper(Sweeper):
    """The jobs of Hydra's own sweeper whose numbers are given; Hydra numbers them anew, from 0."""

    def __init__(self, max_batch_size: int | None, params: dict[str, str] | None, numbers: list[int]) -> None:
        """Take the settings of `PartSweeperConf`."""
        self.batch, self.params, self.numbers = max_batch_size, params or {}, [int(number) for number in numbers]

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        """What Hydra tells a sweeper before the first job."""
        from hydra.core.plugins import Plugins

        self.hydra_context, self.config = hydra_context, config
        self.launcher: Any = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[Any]:
        """Have the launcher carry the jobs out; what it returned of each batch."""
        from hydra.core.override_parser.overrides_parser import OverridesParser

        assert self.hydra_context is not None  # Hydra calls `setup` first
        assert self.config is not None
        given = [*(f"{name}={value}" for name, value in self.params.items()), *arguments]
        values: dict[str, list[str]] = {}
        for one in OverridesParser.create(config_loader=self.hydra_context.config_loader).parse_overrides(given):
            key = one.get_key_element()
            texts = one.sweep_string_iterator() if one.is_sweep_override() else [one.get_value_element_as_str()]
            values[key] = [f"{key}={text}" for text in texts]
        every = [list(job) for job in itertools.product(*values.values())]
        jobs = [every[number] for number in self.numbers]
        folder = pathlib.Path(self.config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        size, returns = self.batch or len(jobs), []
        for first in range(0, len(jobs), size):
            batch = jobs[first : first + size]
            self.validate_batch_is_legal(batch)
            results = self.launcher.launch(batch, initial_job_idx=first)
            for result in results:
                _ = result.return_value  # raises what the job raised
            returns.append(results)
        return returns


@functools.cache
def register() -> None:
    """Make Hydra know our sweeper."""
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins

    ConfigStore.instance().store(group="hydra/sweeper", name=NAME, node=PartSweeperConf, provider="surefoot")
    Plugins.instance().class_name_to_class[TARGET] = PartSweeper
