"""Reads a YAML or TOML file of options. The only importer of yaml and tomllib."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.user_files import read_given

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPECTED: Final = "name a YAML file, or a TOML file whose name ends in .toml"

_SAFE: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader written in C, eight times as fast, if PyYAML has it."""

MAX_BYTES: Final = 16 << 20
"""Most bytes of a file of options or manifests."""
MAX_DEPTH: Final = 100
"""Most lists and tables within one another. libyaml ends the process at some ten thousand."""
MAX_VALUES: Final = 500_000
"""Most values of a file."""
MAX_DIGITS: Final = 1000
"""Most characters of a number: reading and writing takes the square of their number."""
MAX_REPEATED: Final = 100_000
"""Most values that the aliases of a file may stand for together: a few lines of them may mean billions."""

YAMLError = yaml.YAMLError
"""The error of any YAML reader, Horovod's own included, for an invalid file."""


def to_yaml(document: Mapping[str, Any]) -> str:
    """Return a document as YAML, with its keys in their order."""
    return str(yaml.safe_dump(dict(document), sort_keys=False))


def to_documents(whole: Sequence[Mapping[str, Any]]) -> str:
    """Return several documents as one text, without anchors and wrapped lines."""
    return "---\n".join(
        yaml.dump(dict(each), Dumper=_WithoutAnchors, sort_keys=False, width=1 << 20, allow_unicode=True)
        for each in whole
    )


class _WithoutAnchors(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def documents(text: str, *, where: str) -> list[dict[str, Any]]:
    """Return all documents of a text, without empty ones. Raises :class:`UsageError` with ``where``."""
    try:
        found = [each for each in _loaded(text) if each is not None]
    except _INVALID as error:
        raise UsageError(f"{where}: {_reason(error)}") from None
    if not all(isinstance(each, dict) for each in found):
        raise UsageError(f"{where}: each document is one object with kind and apiVersion")
    return found


class _TooMuch(ValueError):
    """A text that means more than it says."""


_INVALID: Final = (yaml.YAMLError, tomllib.TOMLDecodeError, ArithmeticError, RecursionError, TypeError, ValueError)
"""What the loaders raise: ``ValueError`` for a date that does not exist, or a number of thousands of digits."""


def _loaded(text: str) -> list[Any]:
    """Return all documents of a YAML text. Raises one of :data:`_INVALID`."""
    _check(text)
    return list(yaml.load_all(text, Loader=_SAFE))


def _check(text: str) -> None:
    """Raise :class:`_TooMuch` for a text that is too deep, or whose aliases stand for too much or for themselves."""
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []  # anchor, and count of values before it
    count = values = repeated = 0
    for event in yaml.parse(text, Loader=_SAFE):
        if isinstance(event, yaml.DocumentStartEvent):
            sizes, open_nodes, count = {}, [], 0
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_nodes):
                raise _TooMuch(f"the alias *{event.anchor} stands for what it is in")
            size = sizes.get(event.anchor or "", 0)
            count, repeated = count + size, repeated + size
            if repeated > MAX_REPEATED:
                raise _TooMuch(f"its aliases stand for more than {MAX_REPEATED:,} values; write them out")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.NodeEvent):
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((event.anchor, count))
                if len(open_nodes) > MAX_DEPTH:
                    raise _TooMuch(f"{_where(event)} is more than {MAX_DEPTH} lists and tables deep")
            elif isinstance(event, yaml.ScalarEvent):
                if event.anchor is not None:
                    sizes[event.anchor] = 1
                if (
                    len(event.value) > MAX_DIGITS
                    and event.value[0] in "+-.0123456789"
                    and (event.tag or not event.style)
                ):
                    raise _TooMuch(
                        f"{_where(event)} has a number of {len(event.value):,} characters; quote it if it is text"
                    )
            count, values = count + 1, values + 1
            if values > MAX_VALUES:
                raise _TooMuch(f"it holds more than {MAX_VALUES:,} values")


def _where(event: yaml.Event) -> str:
    return f"line {event.start_mark.line + 1}" if event.start_mark else "it"


def _reason(error: Exception) -> str:
    """Return one line that says what is wrong."""
    if isinstance(error, RecursionError):
        return "its lists and tables are too deep"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return _worded(error)
    line = " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())
    line = line.replace(' in "<unicode string>", position', ", at character")
    if isinstance(error, _TooMuch | yaml.YAMLError | tomllib.TOMLDecodeError):
        return line
    return f"a value cannot be read: {line.partition('; use sys.')[0]}"


_OPEN: Final = {
    "while parsing a flow sequence": "a list has no ']' or lacks a ','; the list begins",
    "while parsing a flow mapping": "a table has no '}' or lacks a ','; the table begins",
    "while scanning a quoted scalar": "a quoted text has no closing quote; the text begins",
}
"""What is wrong with something that has a beginning, by libyaml's context."""
_PLAIN: Final = {
    "mapping values are not allowed": "there is a ':' where a name cannot be; check the indentation, and quote a value "
    "that holds ': '",
    "cannot start any token": "a value cannot begin with this character; indent with spaces, not tabs, and quote text",
    "found a tab character": "indent with spaces, not tabs",
    "did not find expected key": "this is not NAME: VALUE; check the indentation, and the quotes of the line",
    "expected <block end>": "this is not NAME: VALUE; check the indentation, and the quotes of the line",
    "did not find expected '-'": "a list and a table are mixed; check the indentation",
    "could not find expected ':'": "a name has no ': ' and value",
    "did not find expected node content": "a value is missing, or a bracket is one too many",
    "did not find expected <document start>": "something follows the end of the table",
    "found undefined alias": "the alias has no anchor; quote a value that begins with '*'",
    "could not determine a constructor": "a value begins with '!', which is a tag of YAML; quote the value",
    "unknown escape character": "a text in double quotes has an unknown backslash sequence; use single quotes",
    "unhashable key": "a name is a list or a table; write a plain word",
}
"""The same for other problems, by a part of libyaml's words or of PyYAML's."""


def _worded(error: yaml.MarkedYAMLError) -> str:
    """Say where YAML is broken, and how. Pure."""
    problem, at, begin = error.problem or "", error.problem_mark, error.context_mark
    where = f"line {at.line + 1}, column {at.column + 1}" if at else "somewhere"
    words = _OPEN.get(error.context or "")
    if words is not None and begin is not None and ("expected" in problem or "end of stream" in problem):
        return f"line {begin.line + 1}, column {begin.column + 1}: {words} there"
    plain = next((words for part, words in _PLAIN.items() if part in problem), problem)
    return f"{where}: {' '.join(plain.split())}"


def read_config(path: Path, *, option: str = "--config") -> Mapping[str, Any]:
    """Read ``path``, TOML by its suffix, else YAML: one flat table of options. ``option``: the option that named it.

    Raises :class:`UsageError`, which names the file and, if possible, the line.
    """
    try:
        text = read_given(path, most=MAX_BYTES).decode("utf-8-sig")
        found = [tomllib.loads(text)] if path.suffix == ".toml" else _loaded(text)
        if len(found) > 1:
            raise UsageError(f"{option} {path} holds {len(found)} documents; write one table of names and values")
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be read: {error.strerror}; {EXPECTED}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{option} {path} cannot be read: {error}; {EXPECTED}") from None
    except _INVALID as error:
        raise UsageError(f"{option} {path}: {_reason(error)}") from None
    document = found[0] if found else None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UsageError(f"{option} {path} holds a {type(document).__name__}; write one table of names and values")
    return document
