"""Files of settings in YAML, read as plain values: the one reader of all of them.

What a command says (`--config`), presets, spaces of `tune`, suites of `bench`, mappings of logs: others may send them.
Such a file is small, a regular file, and holds numbers, texts, truth values, lists and names with values, and nothing
that could grow or execute: no references (`*name`), no tags, no key twice.
"""

from __future__ import annotations

import os
import re
from typing import Any, ClassVar

import yaml

from surefoot.core.base.errors import ConfigError, SurefootError, printable
from surefoot.core.base.files import read_regular
from surefoot.core.base.memory import enough_memory
from surefoot.core.base.schema import DEEPEST, shown
from surefoot.core.base.unique_keys import UniqueKeys

MOST_BYTES = 256 << 10
"""Of a file of settings: it is read in one piece, and each of its values takes a kilobyte while it is."""
MOST_DIGITS = 100
"""Characters of a number. A float needs 24; the time that python takes for more grows with their square."""
_TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map"))
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?$|[-+]?[0-9]+[eE][-+]?[0-9]+$"
    r"|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
)
"""Numbers with a point or an exponent, as YAML 1.2 has them (10.3.2, core schema): PyYAML reads 1e-4 as a text."""


class _Plain(UniqueKeys):
    """Plain values, without references, and no deeper than JSON may be."""

    yaml_constructors: ClassVar = {
        tag: one for tag, one in yaml.SafeLoader.yaml_constructors.items() if tag in (*_TAGS, None)
    }
    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in pairs if tag in _TAGS[:3] or tag.endswith(":merge")]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise _refused("it has references (*name), which are not read: write what they stand for", event)
        if self.depth > DEEPEST:
            raise _refused(f"it is nested deeper than {DEEPEST} levels", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        number = node.tag in (_TAGS[2], _TAGS[3]) and isinstance(node, yaml.ScalarNode)
        if number and len(node.value) > MOST_DIGITS:
            raise _refused(f"a number has {len(node.value)} characters, and may have {MOST_DIGITS}", node)
        if isinstance(node, yaml.ScalarNode) and printable(node.value) != node.value:
            raise _refused(f"{shown(node.value)} has a control character, which no setting needs", node)
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError) as error:  # PyYAML's constructors, of `!!int x` and `!!bool ""`
            raise _refused(f"{shown(node.value)} is no {node.tag.rpartition(':')[2]}", node) from error

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        if odd := [key for key in found if not isinstance(key, str)]:
            raise _refused(f"the key {shown(odd[0])} is no name; put it in quotes if it is meant as one", node)
        return found


_Plain.add_implicit_resolver(_TAGS[3], _FLOAT, list("-+0123456789."))


def _refused(problem: str, place: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, place.start_mark)


def read_settings(path: str | os.PathLike[str], error: type[SurefootError] = ConfigError) -> Any:
    """The value in a YAML file of settings.

    Args:
        path: of the file.
        error: kind of the refusals.

    Raises:
        SurefootError: of the kind `error`: the file can't be read, is no regular file, has more than `MOST_BYTES`, or
            is refused by `parse_settings`.
    """
    try:
        content = read_regular(path, MOST_BYTES)
    except OSError as failure:
        raise error(f"{path}: can't be read ({failure.strerror or failure})") from failure
    return parse_settings(content, path, error)


def parse_settings(content: bytes, where: object, error: type[SurefootError] = ConfigError) -> Any:
    """The value of a YAML text of settings: of null, truth values, numbers, texts, lists and dictionaries with texts
    as keys.

    Args:
        content: in UTF-8.
        where: the file that it stands in, for the message.
        error: kind of the refusals.

    Raises:
        SurefootError: of the kind `error`: it is larger than `MOST_BYTES`, no YAML, has a key twice, a reference, a
            tag, more than 32 levels, or a number of more than `MOST_DIGITS` characters; with its line.
    """
    with enough_memory(where, error):
        return _parsed(content, where, error)


def _parsed(content: bytes, where: object, error: type[SurefootError]) -> Any:
    if len(content) > MOST_BYTES:
        raise error(f"{where}: has more than {MOST_BYTES >> 10} KiB, too much for a file of settings")
    try:
        return yaml.load(content.decode("utf-8-sig"), _Plain)
    except UnicodeDecodeError as failure:
        line = f", line {content[: failure.start].count(10) + 1}"
        raise error(f"{where}{line}: is no text in UTF-8; save it as that") from failure
    except yaml.reader.ReaderError as failure:
        line = f", line {content.decode('utf-8-sig').count(chr(10), 0, failure.position) + 1}"
        character = f"{failure.character:#x}"
        raise error(f"{where}{line}: is no YAML (the character {character} may not stand in it)") from failure
    except (yaml.YAMLError, RecursionError) as failure:
        place = getattr(failure, "problem_mark", None)
        line = "" if place is None else f", line {place.line + 1}"
        problem = getattr(failure, "problem", None) or str(failure)
        raise error(f"{where}{line}: is no YAML ({problem})") from failure
