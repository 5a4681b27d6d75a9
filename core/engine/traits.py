"""Facts about a class of algorithms that others read: what it requires, how it sees, acts and starts from another run.

An algorithm states the facts that differ from its base class's, and gets the others from there:

    class SAC(OffPolicyAgent):
        requires = Requires(data="optional")
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Traits:
    """A record of which a class states some fields: those that it leaves out are its base class's, or the defaults."""

    def __init__(self, **stated: Any) -> None:
        """Take the stated fields.

        Raises:
            TypeError: a field that the record does not have.
        """
        if unknown := sorted(stated.keys() - self.fields()):
            raise TypeError(
                f"{type(self).__name__} has no {', '.join(unknown)}; it has {', '.join(sorted(self.fields()))}"
            )
        vars(self).update(stated)

    @classmethod
    def fields(cls) -> set[str]:
        """Names that it may state."""
        return {name for name in cls.__annotations__ if name != "OWN"}

    OWN: ClassVar[tuple[str, ...]] = ()
    """Fields that each class states for itself: what its base does in them is not its own."""

    def over(self, base: Self) -> Self:
        """What this one states, and where it states nothing what `base` does."""
        return type(self)(**{**base.handed_down(), **vars(self)})

    def handed_down(self) -> dict[str, Any]:
        """The stated fields that a subclass has too."""
        return {name: value for name, value in vars(self).items() if name not in self.OWN}

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse a change: a record is shared by a class and those below it."""
        raise dataclasses.FrozenInstanceError(
            f"{type(self).__name__} can't change: state {name} in a subclass of the agent"
        )

    def __eq__(self, other: object) -> bool:
        """Whether all fields are equal, stated or not."""
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in self.fields())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """With the fields that are stated."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Requires(Traits):
    """What an algorithm needs to be trained, and what it can take; `Agent.needs` adds what options decide."""

    data: str = "required"
    """Whether it is given a dataset: required, optional or refused."""
    online: bool = False
    """Whether it gathers experience while it trains; then a run's steps are those of the environment."""
    discrete: bool = False
    """Whether it learns problems with discrete actions."""
    continuous: bool = True
    """Whether it learns problems with continuous actions."""
    masks: bool = False
    """Whether it chooses among allowed actions alone where observations say which these are (`Spec.masked`)."""
    costs: bool = False
    """Whether it keeps costs to a limit; one that has "costs" in `required_columns` need not say so."""
    margins: bool = False
    """Whether margins in its dataset mean something to it: then the entry point computes them where it can."""
    rewards: bool = True
    """Whether one that has "rewards" in `required_columns` can't do without: data that have none give 0."""
    one_vector: bool = False
    """Whether observations must be one vector though its config has an encoder, as that of what it is made from."""
    run: bool = False
    """Whether it makes no sense without a run that it starts from."""
    policy: bool = True
    """Whether it learns to act; a model of the world alone does not."""
    gap: bool = False
    """Whether it is meant for a simulator that is wrong (`gap=`)."""


class Vision(Traits):
    """How an algorithm uses the encoder of images or of several arrays."""

    encoder_with: tuple[str, ...] = ()
    """Networks that the encoder is trained along with, the first that there is; (): `core.engine.features` says."""
    encodes_itself: bool = False
    """Whether its losses call `encoder` on the arrays of their batches, and train it (else: `core.engine.features`)."""
    fixed_views: bool = False
    """Whether its loop draws how images are moved, once for each row, and not each training step anew."""
    annotates: bool = True
    """Whether `annotate` reads features of observations; else they are only made where a loss reads them."""
    histories: bool = False
    """Whether its sources give histories of several arrays, so that `history` may be above 1 there."""


class WarmStart(Traits):
    """What an algorithm takes from a run that it starts from."""

    networks: tuple[str, ...] = ("actor", "normalizer")
    """What that run must give, by attribute; all else is taken where it fits."""
    counters: tuple[str, ...] = ()
    """Buffers that say how far a run has come, and so don't come along."""
    moments: tuple[str, ...] = ()
    """Algorithms from whose runs Adam's moments come along: their losses of the same names are on the same scale."""


class Teams(Traits):
    """How an algorithm trains the agents of a team, which are rows of one environment and share its weights."""

    OWN = ("trains",)

    trains: bool = False
    """Whether rows may be agents of teams (`Spec.team`)."""
    reads_state: bool = False
    """Whether its rows show the team's state behind what an agent observes, for critics or mixing alone."""
    ends_together: bool = False
    """Whether its rows end with the team's episode, and not with each agent's own."""


class Acting(Traits):
    """How an off-policy algorithm acts while it trains."""

    queues_chunks: bool = False
    """Whether `explore` gives C actions, of which the loop plays one a step; it is asked again when they are played or
    the episode ends. Rows are steps of the environment, as for other agents."""
    acts_in_chunks: bool = False
    """Whether a row is a decision: C actions that are played without looking, and the sum of their rewards."""
    stores_played: bool = False
    """Where it acts in chunks: whether a row holds what the environment was given, and not what was chosen."""
    stateful: bool = False
    """Whether it acts by a memory, such as a plan or a recurrent state: then the loop calls `explore_on`."""
    rows: int = 1
    """Rows that its networks see for each observation while it acts: many, where it plans."""


EARLIER: dict[str, tuple[str, str]] = {
    "data": ("requires", "data"),
    "acts": ("requires", "online"),
    "chooses": ("requires", "discrete"),
    "obeys_masks": ("requires", "masks"),
    "reads_costs": ("requires", "costs"),
    "reads_margins": ("requires", "margins"),
    "needs_rewards": ("requires", "rewards"),
    "vector_only": ("requires", "one_vector"),
    "needs_init": ("requires", "run"),
    "has_policy": ("requires", "policy"),
    "wants_gap": ("requires", "gap"),
    "encoder_with": ("vision", "encoder_with"),
    "encodes_itself": ("vision", "encodes_itself"),
    "fixes_views": ("vision", "fixed_views"),
    "annotates_features": ("vision", "annotates"),
    "remembers_frames": ("vision", "histories"),
    "inherits": ("warm_start", "networks"),
    "counts": ("warm_start", "counters"),
    "inherits_moments": ("warm_start", "moments"),
    "plans": ("acting", "queues_chunks"),
    "decides": ("acting", "acts_in_chunks"),
    "stores_played": ("acting", "stores_played"),
    "remembers": ("acting", "stateful"),
    "rows_each": ("acting", "rows"),
}
"""Class attribute of versions up to 0.3 -> record and field; algorithms outside this package may still have them."""
RENAMED = {
    "reads": "required_columns",
    "by_rows": "row_separable",
    "of_whole_batch": "prepare_full_batch",
    "settle": "inherit_options",
    "adopt": "load_from",
}
"""Attributes and methods of an agent by their names up to 0.3 -> now."""


class Described:
    """Base of classes with records: what a subclass states is merged with what its bases do."""

    _stated: ClassVar[dict[str, Traits]] = {}
    """Records as the class itself states them."""
    RECORDS: ClassVar[tuple[str, ...]] = ("requires", "vision", "warm_start", "teams", "acting")

    def __init_subclass__(cls, **options: Any) -> None:
        """Merge the records that the class states with those of its bases."""
        super().__init_subclass__(**options)
        _take_earlier(cls)
        cls._stated = {name: vars(cls)[name] for name in cls.RECORDS if name in vars(cls)}
        for name in cls.RECORDS:
            known = [vars(one).get("_stated", {}).get(name) for one in reversed(cls.__mro__[1:])]
            record = cls._stated.get(name)
            for base in filter(None, known[::-1]):
                record = type(base)(**base.handed_down()) if record is None else record.over(base)
            if record is not None:
                setattr(cls, name, record)


def _take_earlier(cls: type) -> None:
    """Read the class attributes of earlier versions as the records that took their place."""
    own = dict(vars(cls))
    found: dict[str, dict[str, Any]] = {}
    for old, (record, field) in EARLIER.items():
        if old in own and not callable(own[old]) and not isinstance(own[old], property):
            found.setdefault(record, {})[field] = own[old]
    if own.get("only_chooses"):
        found.setdefault("requires", {})["continuous"] = False
    kinds = {"requires": Requires, "vision": Vision, "warm_start": WarmStart, "acting": Acting}
    for record, fields in found.items():
        stated = kinds[record](**fields)
        setattr(cls, record, own[record].over(stated) if record in own else stated)
    renamed = {old: new for old, new in RENAMED.items() if old in own and new not in own}
    for old, new in renamed.items():
        setattr(cls, new, own[old])
    if found or renamed:
        place = ", ".join([f"{record} = {kinds[record](**fields)!r}" for record, fields in found.items()])
        words = [place] if place else []
        words += [f"{new} for {old}" for old, new in renamed.items()]
        warnings.warn(
            f"{cls.__module__}.{cls.__qualname__}: its class attributes have new names: write {'; '.join(words)}. The "
            "earlier ones are read until version 0.5",
            DeprecationWarning,
            stacklevel=4,
        )


def earlier_keywords(**renamed: str) -> Callable[[type[T]], type[T]]:
    """Let a class be made by keywords of earlier versions too, with a warning: earlier name -> the one of now."""

    def decorate(kind: type[T]) -> type[T]:
        make: Any = kind.__init__

        @functools.wraps(make)
        def __init__(self: T, *arguments: Any, **options: Any) -> None:
            for old in renamed.keys() & options.keys():
                words = f"{kind.__name__}({old}=...) is {renamed[old]} now; the earlier name is read until version 0.5"
                warnings.warn(words, DeprecationWarning, stacklevel=2)
                options[renamed[old]] = options.pop(old)
            make(self, *arguments, **options)

        kind.__init__ = __init__  # type: ignore[assignment]
        return kind

    return decorate
