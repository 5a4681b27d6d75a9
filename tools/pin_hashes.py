"""Writes `constraints-hashed.txt`: the versions of `constraints.txt` with SHA-256 of the files that pip would install.

Usage: `python tools/pin_hashes.py REPORT...`, with reports of pip, one for each python and platform to cover:

    python -m pip install --dry-run --ignore-installed --no-deps --report REPORT -r constraints.txt

(`--target DIR --platform manylinux_2_28_x86_64 --python-version 3.12` asks for another python's). Nothing is installed
by it, and packages whose index offers metadata are not downloaded. The hashes are the index's, over its https
connection. A pinned version that no report has keeps the hashes that the file has for it; where it has none, that is
an error, so reports of the new pins alone (`-r NEW.txt`) are enough.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
import urllib.parse
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
HEADER = """\
# Versions of constraints.txt with SHA-256 of their files on PyPI: for Linux x86-64 and Python {pythons}.
# Written by tools/pin_hashes.py, which says how; checked by tools/audit.py. Install with
#   pip install --require-hashes --no-deps -r constraints-hashed.txt
#   pip install --no-deps --no-build-isolation .
# torch has those of PyPI's wheels (CUDA) and of the +cpu wheel for Python 3.11 that the tests ran with. Another build
# of the same version (+cpu for another Python, ROCm) has its own: take the line away and install torch first.
"""


def canonical(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return name.lower().replace("_", "-").replace(".", "-")


def pins(text: str) -> dict[str, str]:
    """Version by canonical name of each `name==version` line.

    Raises:
        ValueError: a line is neither that, nor a comment, an option or empty.
    """
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        name, equals, version = words[0].partition("==")
        if not equals or not version:
            raise ValueError(f"{line!r} is not name==version")
        found[canonical(name)] = version
    return found


def hashes(text: str) -> dict[str, list[str]]:
    """SHA-256 by canonical name in a file that this program wrote."""
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split("#")[0].split()
        if words:
            prefix = "--hash=sha256:"
            found[canonical(words[0].partition("==")[0])] = [
                word.removeprefix(prefix) for word in words[1:] if word.startswith(prefix)
            ]
    return found


def reported(report: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    """Version, file name and SHA-256 by canonical name in a report of pip; versions without a local build's tag."""
    found = {}
    for one in report["install"]:
        about = one["metadata"]
        file = urllib.parse.unquote(one["download_info"]["url"].rsplit("/", 1)[-1])
        digest = one["download_info"]["archive_info"]["hashes"]["sha256"]
        found[canonical(about["name"])] = (about["version"].partition("+")[0], file, digest)
    return found


def hashed(constraints: str, reports: list[dict[str, Any]], before: str = "") -> str:
    """The file's text.

    Args:
        constraints: the text of `constraints.txt`.
        reports: of pip.
        before: the text of the file as it is; hashes of versions that no report has are taken from it.

    Raises:
        ValueError: neither has a pinned version.
    """
    versions, digests_before = pins(before), hashes(before)
    wanted, found = pins(constraints), [reported(report) for report in reports]
    lines = [line.strip() for line in constraints.splitlines() if not line.startswith("#")]
    names = {canonical(line.partition("==")[0]): line for line in lines if line}
    tags = {tag for one in found for _, file, _ in one.values() for tag in re.findall(r"-cp3(\d+)-cp3\1-", file)}
    tags |= set(re.findall(r"\b3\.(\d\d)\b", before.partition("\n# Written")[0]))
    text = [HEADER.format(pythons=", ".join(f"3.{tag}" for tag in sorted(tags, key=int)))]
    for name, version in wanted.items():
        digests = {one[name][2] for one in found if name in one and one[name][0] == version}
        if not digests and versions.get(name) == version:
            digests = set(digests_before[name])
        if not digests:
            raise ValueError(f"no report has {name} {version}")
        text.append(f"{names[name]} \\\n")
        text.append(" \\\n".join(f"    --hash=sha256:{digest}" for digest in sorted(digests)) + "\n")
    return "".join(text)


def main() -> int:
    """Write the file."""
    constraints, target = (ROOT / "constraints.txt").read_text(encoding="utf-8"), ROOT / "constraints-hashed.txt"
    before = target.read_text(encoding="utf-8") if target.exists() else ""
    reports = [json.loads(pathlib.Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:]]
    target.write_text(hashed(constraints, reports, before), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
