"""Reads a YAML file that a user writes, with the line of every key, so that errors name it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from skylark.errors import BadSettingsFile


class LinedMapping(dict[str, Any]):
    """A mapping with its line and the line of each key."""

    line = 0

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}

    def line_of(self, key: str) -> int:
        return self.lines.get(key, self.line)


class YamlReader:
    """Parses YAML into plain values with line numbers."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fail(self, line: int, reason: str) -> NoReturn:
        raise BadSettingsFile(f"{self.path}:{line}", reason)

    def read(self, needed: Sequence[str]) -> Any:
        """The whole file, which has at least these keys."""
        try:
            node = yaml.compose(self.path.read_text(), Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark is not None else 1
            self.fail(line, f"invalid YAML: {error.problem or error.context}")
        except yaml.YAMLError as error:
            self.fail(1, f"invalid YAML: {error}")
        except UnicodeDecodeError as error:
            self.fail(1, f"not a text file: {error}")
        if node is None:
            self.fail(1, f"the file is empty; it needs at least {' and '.join(needed)}")
        return self._value(node)

    def _value(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.MappingNode):
            found = LinedMapping()
            found.line = node.start_mark.line + 1
            for key_node, value_node in node.value:
                key, line = str(key_node.value), key_node.start_mark.line + 1
                if key in found:
                    self.fail(line, f"duplicate key {key}")
                found[key] = self._value(value_node)
                found.lines[key] = line
            return found
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item) for item in node.value]
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (yaml.YAMLError, ValueError):
            self.fail(node.start_mark.line + 1, f"invalid value {node.value!r}; put it in quotes")

    def mapping(self, value: Any, what: str, line: int, known: Sequence[str]) -> LinedMapping:
        """Check for a mapping with only known keys."""
        if not isinstance(value, LinedMapping):
            self.fail(line, f"{what} is {kind_of(value)}; it must be a mapping with {', '.join(known)}")
        for key in value:
            if key not in known:
                self.fail(value.line_of(key), f"unknown key {key!r} in {what}{hint(key, known)}")
        return value

    def one_of(self, value: Any, known: Sequence[str], what: str, line: int) -> tuple[str, Any, int]:
        """Key, value and line of a list item with a single key, such as `- sql: …`."""
        if not isinstance(value, LinedMapping) or len(value) != 1:
            self.fail(
                value.line if isinstance(value, LinedMapping) else line,
                f"a {what} is one of {', '.join(known)}, as in `- {known[0]}: …`",
            )
        [key] = value
        if key not in known:
            self.fail(value.line, f"unknown {what} {key!r}{hint(key, known)}")
        return key, value[key], value.line


def hint(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; choose from {', '.join(known)}"


def kind_of(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else repr(value)
