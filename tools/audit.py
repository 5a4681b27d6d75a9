"""Checks what is installed against what is pinned: versions, hashes, requirements, licences.

Usage: `.venv/bin/python tools/audit.py`; needs no network. One line for each finding, exit code 1 where there is one:

- `constraints.txt` and `constraints-hashed.txt` name the same versions, and each has a hash;
- each installed distribution has the version that is pinned, or is in `NOT_PINNED`;
- `pip check` finds all requirements met;
- each distribution's licence is one that `LICENCES` allows; where its metadata are not clear, it is in `READ`.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping

from pin_hashes import ROOT, canonical, hashes, pins

NO_HASH: dict[str, str] = {}
"""Pinned packages without a hash, with the reason."""

NOT_PINNED = {
    "pip": "the installer: of the python that made the environment",
    "setuptools": "the same",
    "surefoot": "this package",
    "mlflow-skinny": "an extra that brings a platform of its own, not part of the tested set",
    "ray": "likewise",
    "hydra-submitit-launcher": "likewise",
    "submitit": "likewise",
    "pynput": "of a person's keyboard, the extra teleop",
    "pygame-ce": "of a person's gamepad, the extra teleop",
}
CUDA = ("nvidia-", "triton", "cuda-")
"""Beginnings of names that torch's CUDA build brings; their versions follow from torch's."""

LICENCES = {
    "0bsd", "apache 2.0", "apache-2.0", "apache 2.0 license", "apache software license",
    "apache-2.0 with llvm-exception", "bsd",
    "bsd 2-clause license", "bsd 3-clause license", "3-clause bsd license", "bsd license", "bsd-2-clause",
    "bsd-3-clause", "bsl-1.0", "cc0-1.0", "isc", "isc license", "isc license (iscl)", "mit", "mit license", "mit-cmu",
    "mpl-2.0", "mozilla public license 2.0 (mpl 2.0)", "psf-2.0", "python software foundation license", "zlib",
}  # fmt: skip
"""Licences that allow use with Apache-2.0 code, as metadata spell them. MPL-2.0 binds changes of its own files only."""

READ: dict[str, str] = {
    "codespell": "GPL-2.0: a program that `make lint` runs on the text; nothing imports it, and no user gets it",
    "docutils": "public domain, some files BSD-2-Clause and 0BSD; the GPL is of its mode for Emacs, not in the wheel",
    "nvidia-": "NVIDIA's terms: may be used and passed on with a program; only the GPU's packages bring them",
    "regex": "Apache-2.0, and CNRI's of Python 1.6 for what came from its re: use and change with the notice kept",
}
"""Beginnings of names of distributions whose metadata name no licence of `LICENCES`; what reading theirs gave."""


def exempt(name: str) -> bool:
    """Whether a distribution may be there without a pin."""
    return name in NOT_PINNED or name.startswith(CUDA)


def of_files(pinned: Mapping[str, str], with_hash: Mapping[str, str], digests: Mapping[str, list[str]]) -> list[str]:
    """What differs between the two files of constraints."""
    found = []
    for name in sorted({*pinned, *with_hash}):
        if pinned.get(name) != with_hash.get(name) and not (name in NO_HASH and name not in with_hash):
            found.append(
                f"{name}: constraints.txt has {pinned.get(name, 'no such line')}, constraints-hashed.txt "
                f"{with_hash.get(name, 'no such line')}; write it anew with tools/pin_hashes.py"
            )
    for name in sorted(with_hash):
        if not digests.get(name) or not all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests[name]):
            found.append(f"{name}: has no SHA-256 in constraints-hashed.txt")
    return found


def of_versions(pinned: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """What is installed in another version than the pinned, or without a pin; a build's tag (`+cpu`) is left out."""
    found = []
    for name, version in sorted(installed.items()):
        if name not in pinned:
            if not exempt(name):
                found.append(f"{name} {version}: is installed and not in constraints.txt")
        elif version.partition("+")[0] != pinned[name]:
            found.append(f"{name}: {version} is installed, {pinned[name]} is in constraints.txt")
    return found


def licence(metadata: Mapping[str, str | None], classifiers: Iterable[str]) -> list[str]:
    """The licences that metadata name: of `License-Expression`, else the classifiers, else `License`'s first line."""
    expression = metadata.get("License-Expression")
    if expression:
        return [part.strip("() ").lower() for part in re.split(r"\bAND\b|\bOR\b", expression)]
    named = [line.rsplit("::", 1)[-1].strip().lower() for line in classifiers if line.startswith("License ::")]
    if named:
        return named
    text = (metadata.get("License") or "").strip()
    parts = re.split(r"\bAND\b|\bOR\b", text.splitlines()[0]) if text else []
    return [part.strip("() ").lower() for part in parts]


def of_licences(found: Mapping[str, list[str]]) -> list[str]:
    """Distributions whose licences are not all allowed."""
    return [
        f"{name}: licence {', '.join(named) or 'not named in its metadata'}; read it, then list it in tools/audit.py"
        for name, named in sorted(found.items())
        if not name.startswith(tuple(READ)) and (not named or not LICENCES.issuperset(named))
    ]


def main() -> int:
    """Print what is found; 1 where something is."""
    text = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("constraints.txt", "constraints-hashed.txt")}
    pinned, second = pins(text["constraints.txt"]), text["constraints-hashed.txt"]
    installed, licences = {}, {}
    for one in importlib.metadata.distributions():
        about = one.metadata
        name = canonical(about["Name"])
        installed.setdefault(name, one.version)  # the first on the path is the one that is imported
        named = licence(
            {key: about.get(key) for key in ("License-Expression", "License")}, about.get_all("Classifier", [])
        )
        licences.setdefault(name, named)
    found = of_files(pinned, pins(second), hashes(second)) + of_versions(pinned, installed) + of_licences(licences)
    check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    if check.returncode:
        found += (check.stdout + check.stderr).splitlines()
    print(
        "\n".join(found) or f"{len(installed)} distributions: versions, hashes, requirements and licences are as pinned"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
