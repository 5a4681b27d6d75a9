"""Jobs that are checked before the first of them begins, and what is reported of those that can't be trained.

`surefoot train -m`, `bench` and `tune` carry out many runs. A mistake in the last of them would be found hours after
the first has started, so each is checked as `train` checks it before its first step: options, files, data, environment,
and whether they go together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from surefoot.core.base.errors import ConfigError, SurefootError

if TYPE_CHECKING:
    from surefoot.cli.support.config import Request
    from surefoot.cli.support.training import Style
    from surefoot.data import Dataset

SKIP = "--skip-failing"
"""The option that gives up jobs that can't be trained as configured, and carries out the others."""
SKIP_HELP = "give up jobs that can't be trained as configured, and train the others; the exit code is 2 then"
FEW_SECONDS = 20
"""Jobs of which a line says that they are being checked."""


def check_jobs(
    jobs: Mapping[str, Request], style: Style, trust: bool = False, *, here: bool = True
) -> dict[str, SurefootError]:
    """Check what is to be trained; the jobs that can't be, each with the reason.

    Data are read once for all jobs that learn from them, one dataset after another. Simulators on a GPU are not made.

    Args:
        jobs: label -> what is asked for.
        style: how to talk.
        trust: as of `surefoot train`.
        here: the jobs are carried out on this machine; else only what is named is checked, for another machine may have
            the data, the simulator and the GPU.
    """
    found: dict[str, SurefootError] = {}
    by_data: dict[tuple[object, ...], list[str]] = {}
    for label, request in jobs.items():
        by_data.setdefault(_data_of(request), []).append(label)
    if here and len(jobs) > FEW_SECONDS:
        style.say(f"checking {len(jobs)} jobs")
    for labels in by_data.values():
        first = jobs[labels[0]]
        try:
            dataset = _read(first, style, here)
        except SurefootError as error:
            found |= dict.fromkeys(labels, error)
            continue
        for label in [one for one in labels if here and not _on_device(jobs[one])]:
            try:
                _check(jobs[label], dataset, trust)
            except SurefootError as error:
                found[label] = error
    return {label: found[label] for label in jobs if label in found}


def _data_of(request: Request) -> tuple[object, ...]:
    """By what two jobs read the same data in the same way."""
    from surefoot.runs.plan import READING

    return tuple(request.fields[name] for name in ("dataset", *READING))


def _on_device(request: Request) -> bool:
    """Whether it acts in a simulator that takes memory of a GPU for as long as this process lives."""
    from surefoot.envs.names import device_scheme

    return request.fields["env"] is not None and device_scheme(request.fields["env"]) is not None


def _read(request: Request, style: Style, here: bool) -> Dataset | None:
    """The data of a request; None where it needs none, or is read elsewhere: then only the name is checked."""
    from surefoot.cli.support.training import load
    from surefoot.runs.embedded import require_known

    name = request.fields["dataset"]
    if name is not None and not here:
        require_known(name)
    return load(request, style) if name is not None and here else None


def _check(request: Request, dataset: Dataset | None, trust: bool) -> None:
    from surefoot.cli.support.training import plan_of
    from surefoot.runs.start import check

    check(plan_of(request, dataset, trust), dataset, trust)


def reasons(failed: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Reason -> the labels of the jobs that it stops, in their order.

    >>> reasons([("0", "no such file"), ("2", "no such file"), ("3", "out of range")])
    {'no such file': ['0', '2'], 'out of range': ['3']}
    """
    found: dict[str, list[str]] = {}
    for label, reason in failed:
        found.setdefault(reason, []).append(label)
    return found


def reported(labels: Sequence[str], what: str = "job") -> str:
    """Jobs in words.

    >>> given(["3"]), given(["0", "1", "4"])
    ('job 3', 'jobs 0, 1, 4')
    """
    return f"{what}{'' if len(labels) == 1 else 's'} {', '.join(labels)}"


def refusal(failed: Mapping[str, SurefootError], count: int, what: str = "job") -> ConfigError:
    """The error of jobs of which some can't be trained, each reason once; of one reason for all, that alone.

    Args:
        failed: label -> why.
        count: of all jobs.
        what: one of them is called.
    """
    by_reason = reasons((label, str(error)) for label, error in failed.items())
    if len(by_reason) == 1 and len(failed) == count:
        return ConfigError(next(iter(by_reason)))
    able = f"; {SKIP} gives up what can't be trained" if len(failed) < count else ""
    lines = [f"{reported(labels, what)}: {reason}" for reason, labels in by_reason.items()]
    if len(lines) == 1:
        return ConfigError(f"{lines[0]} (of {count} {what}s none was started{able})")
    started = f"{len(failed)} of {count} {what}s can't be trained, and none was started{able}"
    return ConfigError(f"{started}:\n  " + "\n  ".join(lines))
