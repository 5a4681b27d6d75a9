"""YAML in which a key stands once: of two, PyYAML keeps the last without a word."""

from __future__ import annotations

from typing import Any

import yaml


class UniqueKeys(yaml.SafeLoader):
    """Plain values, as PyYAML's own; a mapping with a key twice is no YAML, as the YAML specification says.

    Raises:
        yaml.YAMLError: by `yaml.load`: says which key, with its place.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """As PyYAML's; keys that are merged from elsewhere (<<) may stand here again."""
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name is not None and name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep)
