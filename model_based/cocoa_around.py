"""COCOA around IQL, CQL, MOPO and MOBILE, with the authors' widths: what it is stands in `cocoa`."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import algorithm_of
from surefoot.model_based.cocoa import COCOAConfig, around
from surefoot.model_based.imagined_sac import ImaginedSAC
from surefoot.model_based.mobile import MOBILEConfig, of_mobile
from surefoot.model_based.mopo import MOPOConfig, of_mopo
from surefoot.offline.cql import CQL, CQLConfig
from surefoot.offline.iql import IQL, IQLConfig


@dataclasses.dataclass(frozen=True)
class COCOAIQLConfig(COCOAConfig, IQLConfig):
    """Settings of COCOA around IQL."""

    hidden: tuple[int, ...] = (100, 100)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        COCOAConfig.__post_init__(self)
        IQLConfig.__post_init__(self)


@around
class COCOAIQL(IQL):
    """COCOA around IQL."""

    name = "cocoa_iql"
    Config: ClassVar[type] = COCOAIQLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}


@dataclasses.dataclass(frozen=True)
class COCOACQLConfig(COCOAConfig, CQLConfig):
    """Settings of COCOA around CQL."""

    hidden: tuple[int, ...] = (256, 256, 256)
    transducer: tuple[int, ...] = (256, 256, 256)
    embedding: int = 32

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        COCOAConfig.__post_init__(self)
        CQLConfig.__post_init__(self)
        if self.layer_norm_actor or self.layer_norm_critic:
            raise ConfigError(f"{algorithm_of(self)}: transduced networks have no layer norms; leave them out")


@around
class COCOACQL(CQL):
    """COCOA around CQL."""

    name = "cocoa_cql"
    Config: ClassVar[type] = COCOACQLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}


@dataclasses.dataclass(frozen=True)
class COCOAMOPOConfig(COCOAConfig, MOPOConfig):
    """Settings of COCOA around MOPO."""

    hidden: tuple[int, ...] = (100, 100)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        COCOAConfig.__post_init__(self)
        MOPOConfig.__post_init__(self)


@around
class COCOAMOPO(ImaginedSAC):
    """COCOA around MOPO."""

    name = "cocoa_mopo"
    Config: ClassVar[type] = COCOAMOPOConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}
    uncertainty, judge = of_mopo.uncertainty, of_mopo.judge


@dataclasses.dataclass(frozen=True)
class COCOAMOBILEConfig(COCOAConfig, MOBILEConfig):
    """Settings of COCOA around MOBILE."""

    hidden: tuple[int, ...] = (100, 100)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        COCOAConfig.__post_init__(self)
        MOBILEConfig.__post_init__(self)


@around
class COCOAMOBILE(ImaginedSAC):
    """COCOA around MOBILE."""

    name = "cocoa_mobile"
    Config: ClassVar[type] = COCOAMOBILEConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}
    inconsistency, _by_member = of_mobile.inconsistency, of_mobile._by_member
    targets, critic_noise = of_mobile.targets, of_mobile.critic_noise
