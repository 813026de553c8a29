"""Read YAML in which no key is given twice: YAML's own readers keep the last value, silently."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import ComposerError


class UniqueKeyLoader(yaml.SafeLoader):
    """A safe loader for which a key given twice in one mapping is an error with its line."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping, and check its keys before any are merged into it."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    said = f"{key.value!r} is given twice, first in line {lines[key.value] + 1}"
                    raise ComposerError(None, None, said, key.start_mark)
                lines[key.value] = key.start_mark.line
        return node


def load_yaml(text: str) -> Any:
    """Read one YAML document.

    Raises:
        yaml.YAMLError: it is not YAML, or gives a key twice.
    """
    return yaml.load(text, Loader=UniqueKeyLoader)  # noqa: S506 - a safe loader's child
