"""YAML files, and mistakes in them with file, line and column."""

from pathlib import Path
from typing import Any

import yaml
from yaml import MappingNode, Node, ScalarNode

MOST_VALUES = 100_000
"""Maximum number of values in one file, with expanded aliases: many times the configuration's."""

MOST_LEVELS = 100
"""Maximum depth of lists and keys in one file. Python's own limit is not one: libraries raise it."""


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file with keys at its top level.

    Raises:
        ValueError: as `read_yaml`, or it has other content, in one sentence.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        held = "nothing" if content is None else "a list" if isinstance(content, list) else f"{content!r:.60}"
        raise ValueError(f"{path}: it has {held}; allowed: keys with their values, a line each, as in `scale: smoke`")
    return content


def read_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        ValueError: it cannot be read, is not YAML, or has a duplicate key, a recursive alias, aliases that expand to
            too much, or too many levels, in one sentence with line and column.
    """
    try:
        loader = yaml.CSafeLoader(path.read_bytes())
        node = loader.get_single_node()
        if node is None:
            return None
        if (values := _count_values(loader, node, {})) > MOST_VALUES:
            raise ValueError(f"{path}: its aliases expand to {values} values; allowed: at most {MOST_VALUES}")
        return loader.construct_document(node)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = str(error.problem).replace("but found another document", "a second document; allowed: one")
        raise ValueError(f"{path}{place}: {problem}") from None
    except yaml.YAMLError as error:  # characters not allowed in YAML
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


def _count_values(loader: yaml.CSafeLoader, node: Node, counts: dict[Node, int | None], level: int = 0) -> int:
    """Count a node's values, aliases expanded; None in `counts` marks nodes that are being counted."""
    if node in counts:
        count = counts[node]
        if count is None:
            raise yaml.MarkedYAMLError(problem="a recursive alias", problem_mark=node.start_mark)
        return count
    if level > MOST_LEVELS:
        raise yaml.MarkedYAMLError(problem=f"nested deeper than {MOST_LEVELS} levels", problem_mark=node.start_mark)
    counts[node] = None
    children: list[Node] = []
    if isinstance(node, MappingNode):
        _check_keys(node)
        children = [child for pair in node.value for child in pair]
    elif isinstance(node.value, list):
        children = node.value
    elif isinstance(node, ScalarNode):
        _check_scalar(loader, node)
    counts[node] = total = 1 + sum(_count_values(loader, child, counts, level + 1) for child in children)
    return total


def _check_scalar(loader: yaml.CSafeLoader, node: ScalarNode) -> None:
    kind = node.tag.rpartition(":")[2]
    if kind == "merge":
        return
    try:
        loader.construct_object(node)
    except yaml.YAMLError:
        raise
    except Exception:  # of whatever kind, such as a date in month 13
        problem = f"{node.value[:40]!r} is not a valid {kind}"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


def _check_keys(mapping: MappingNode) -> None:
    seen: dict[Any, Node] = {}
    for key, _ in mapping.value:
        if isinstance(key.value, str) and (first := seen.setdefault((key.tag, key.value), key)) is not key:
            problem = f"the key {key.value!r} already occurs in line {first.start_mark.line + 1}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
