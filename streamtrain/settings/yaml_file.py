"""YAML with places: plain values, and for each of them the line and column it was written at. It knows
nothing of settings, and never builds anything but plain values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]
_TOO_DEEP = "mappings or lists are nested too deeply"
_MERGE_TAG = "tag:yaml.org,2002:merge"
_DEEPEST = 50
_MOST_VALUES = 100_000  # aliases of aliases multiply
_PLAIN_TAGS = {
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map", "timestamp", "merge")
}


@dataclass(frozen=True, slots=True)
class Place:
    """1-based line and column, and the number of characters to point at."""

    line: int
    column: int
    width: int = 1


@dataclass(frozen=True, slots=True)
class Problem:
    place: Place
    message: str


@dataclass(frozen=True, slots=True)
class Document:
    """value: what the text says. keys, values: where each path's key and value begin. scalars: per line, the
    columns (0-based, begin and end) of its scalar values with their paths, so that a line can be shown with
    secret values left out."""

    value: Any
    keys: dict[Path, Place] = field(default_factory=dict)
    values: dict[Path, Place] = field(default_factory=dict)
    scalars: dict[int, list[tuple[int, int | None, Path]]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class _Loader(yaml.SafeLoader):
    """YAML 1.2's reading where YAML 1.1's surprises: `1e-3` is a number, and only true and false are booleans
    (so the country code `no` stays a text)."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in {"tag:yaml.org,2002:bool"}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def parse(text: str) -> Document:
    """Everything that can be read, with the problems found on the way: one syntax error, or any number of
    duplicate keys, unknown tags, self references and keys that are not text."""
    document = Document(value=None)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)
        document.problems.append(Problem(place, _syntax_message(error, text)))
        return document
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = Place(before.count("\n") + 1, error.position - before.rfind("\n"))
        document.problems.append(
            Problem(place, f"the character U+{ord(text[error.position]):04X} is not allowed in YAML")
        )
        return document
    except RecursionError:  # PyYAML's own
        document.problems.append(Problem(Place(1, 1), _TOO_DEEP))
        return document
    if node is None:
        return document
    builder = _Builder(loader, document)
    return Document(builder.build(node, (), ()), document.keys, document.values, document.scalars, document.problems)


def _syntax_message(error: yaml.MarkedYAMLError, text: str) -> str:
    mark = error.problem_mark
    if mark is not None and "\t" in (error.problem or "").replace("\\t", "\t"):
        return "a tab: YAML is indented with spaces"
    if mark is not None:
        line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
        if "\t" in line[: len(line) - len(line.lstrip())]:
            return "a tab: YAML is indented with spaces"
    if error.problem and "expected a single document" in f"{error.context} {error.problem}":
        return "a second document begins here; the file may hold only one"
    # PyYAML's words are about tokens and nodes, not about the file's content: no secret can be in them.
    problem = error.problem or "not valid YAML"
    context = f" ({error.context})" if error.context and error.context != problem else ""
    return f"not valid YAML: {problem}{context}"


class _Builder:
    def __init__(self, loader: yaml.SafeLoader, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._built = 0

    def build(self, node: yaml.Node, path: Path, within: tuple[int, ...]) -> Any:
        place = Place(node.start_mark.line + 1, node.start_mark.column + 1, _width(node))
        self._built += 1
        if self._built > _MOST_VALUES:
            if self._built == _MOST_VALUES + 1:
                self._problem(place, f"more than {_MOST_VALUES} values, those behind aliases included")
            return None
        self._document.values.setdefault(path, place)
        if id(node) in within:
            self._problem(place, "an alias that contains itself")
            return None
        if len(within) > _DEEPEST:
            self._problem(place, _TOO_DEEP)
            return None
        if node.tag not in _PLAIN_TAGS:
            self._problem(place, f"the tag {node.tag!r} is not allowed: only plain values are")
            self._remember(node, path)
            return None
        if isinstance(node, yaml.MappingNode):
            return dict(self._entries(node, path, (*within, id(node))))
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, at), (*within, id(node))) for at, item in enumerate(node.value)]
        self._remember(node, path)
        return self._scalar(node, place)

    def _scalar(self, node: yaml.Node, place: Place) -> Any:
        try:
            value = self._loader.construct_object(node)
        except (ValueError, yaml.YAMLError):
            self._problem(place, "not a value that YAML knows")
            return None
        return node.value if node.tag.endswith(":timestamp") else value

    def _entries(self, node: yaml.MappingNode, path: Path, within: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
        lines: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            place = Place(key_node.start_mark.line + 1, key_node.start_mark.column + 1, _width(key_node))
            if key_node.tag == _MERGE_TAG:
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                continue
            if not isinstance(key_node, yaml.ScalarNode) or not _names(key_node):
                self._problem(place, "a key that is not a text; put it in quotes")
                continue
            key = str(key_node.value)
            if key in lines:
                self._problem(place, f"the key {key!r} is given twice; first in line {lines[key]}")
                self.build(value_node, (*path, key), within)
                continue
            lines[key] = place.line
            self._document.keys[(*path, key)] = place
            yield key, self.build(value_node, (*path, key), within)
        for source in merged:
            if not isinstance(source, yaml.MappingNode):
                self._problem(
                    Place(source.start_mark.line + 1, source.start_mark.column + 1), "`<<` takes mappings only"
                )
                continue
            if id(source) in within:
                self._problem(
                    Place(node.start_mark.line + 1, node.start_mark.column + 1), "an alias that contains itself"
                )
                continue
            inherited = yaml.MappingNode(
                source.tag, [p for p in source.value if p[0].value not in lines], *_marks(source)
            )
            for key, value in self._entries(inherited, path, (*within, id(source))):
                lines[key] = source.start_mark.line + 1
                yield key, value

    def _remember(self, node: yaml.Node, path: Path) -> None:
        """Where the scalar's characters stand, line by line."""
        begin, end = node.start_mark, node.end_mark
        for line in range(begin.line, end.line + 1):
            first = begin.column if line == begin.line else 0
            last = end.column if line == end.line else None
            self._document.scalars.setdefault(line + 1, []).append((first, last, path))

    def _problem(self, place: Place, message: str) -> None:
        self._document.problems.append(Problem(place, message))


def _marks(node: yaml.Node) -> tuple[Any, Any]:
    return node.start_mark, node.end_mark


def _names(node: yaml.ScalarNode) -> bool:
    """Whether the key is a text, or a whole number as people write those of classes."""
    return node.tag == "tag:yaml.org,2002:str" or (node.tag == "tag:yaml.org,2002:int" and node.value.isdigit())


def _width(node: yaml.Node) -> int:
    if not isinstance(node, yaml.ScalarNode) or node.start_mark.line != node.end_mark.line:
        return 1
    return max(1, node.end_mark.column - node.start_mark.column)
