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
        marks: dict[tuple[str, str], yaml.Mark] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge"):
                first = marks.setdefault((key.tag, key.value), key.start_mark)
                if first is not key.start_mark:
                    said = f"{key.value!r} is given twice, first in line {first.line + 1}"
                    raise ComposerError(None, None, said, key.start_mark)
        return node


def load_yaml(text: str) -> Any:
    """Read one YAML document.

    Raises:
        yaml.YAMLError: it is not YAML, or gives a key twice.
    """
    return yaml.load(text, Loader=UniqueKeyLoader)  # noqa: S506 - a safe loader's child
