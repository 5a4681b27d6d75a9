"""Ids of a run at a tracker, kept in the run folder as `logger_ids.json`, one a seed.

They are random, so that two runs never share one. The file also says which folder it was written in, by path and by
inode. A folder that was moved has one of the two, and continues what it has. A copy has neither: it gets ids of its
own, and what is logged of it never lands in the original's curves.
"""

from __future__ import annotations

import pathlib

from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.schema import Many, Number, Record, Table, Text

FILE = "logger_ids.json"
IDS = Record(
    {
        "format": Number(1, 1, whole=True),
        "folder": Text(10_000),
        "inode": Many(Number(0, whole=True), 2, 2),
        "ids": Table(Table(Text(200))),
    }
)
"""What the file holds: ids are by logger, then by seed."""


class KeptIds:
    """The ids of a run folder at one tracker."""

    def __init__(self, folder: pathlib.Path, logger: str) -> None:
        """Read what is kept.

        Args:
            folder: of the run.
            logger: whose ids.

        Raises:
            CheckpointError: the file is damaged.
        """
        self.folder, self.logger = folder.resolve(), logger
        self.copied_from: str | None = None
        """The folder that this one is a copy of, whose ids are left to it."""
        self._ids: dict[str, dict[str, str]] = {}
        if (folder / FILE).is_file():
            kept = read_json(folder / FILE, IDS)
            if kept["folder"] == str(self.folder) or kept["inode"] == self._inode():
                self._ids = kept["ids"]
            else:
                self.copied_from = kept["folder"]

    def get(self, seed: int) -> str | None:
        """The id of a seed; None where it has none yet."""
        return self._ids.get(self.logger, {}).get(str(seed))

    def keep(self, seed: int, value: str) -> None:
        """Write the id of a seed into the folder."""
        self._ids.setdefault(self.logger, {})[str(seed)] = value
        about = {"format": 1, "folder": str(self.folder), "inode": self._inode(), "ids": self._ids}
        write_json(self.folder / FILE, about)

    def _inode(self) -> list[int]:
        found = self.folder.stat()
        return [found.st_dev, found.st_ino]
