"""A commit's trees as text: one graph for each part of the State, by the part's name.

What all ranks share is a tree of trees in a commit: each part (model, optimizer, …) is written by itself, so that it
can be put back by itself. A rank's own tree is one graph.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from hvd_elastic_ext.checkpoint import graph
from hvd_elastic_ext.checkpoint.format.user_files import FILES
from hvd_elastic_ext.checkpoint.graph import from_pickle, nodes, to_pickle
from hvd_elastic_ext.core.errors import Permanent

VALUES: Final = "\0values"
"""The part that holds the plain values of a State (``epoch``, ``batch``)."""

_PARTS: Final = "parts"


def to_json(tree: bytes) -> str:
    """The tree that all ranks share, as JSON text. Raises :class:`Permanent` for one that no worker has written."""
    top = from_pickle.read(tree)
    if not isinstance(top, nodes.Table) or not all(type(k) is str and type(v) is bytes for k, v in top.pairs):
        raise Permanent("a commit's tree is not one of named parts; run the same version on every host")
    parts = ",\n".join(f"{json.dumps(name)}: {graph.to_json(part)}" for name, part in top.pairs)
    return f'{{"{_PARTS}": {{\n{parts}\n}}}}'


def from_json(text: str) -> bytes:
    """The tree that ``text`` tells of, as bytes for a side. Raises :class:`Permanent` for any other text."""
    pairs = [(name, graph.from_json(part)) for name, part in _parts(text)]
    return to_pickle.written(nodes.Table(list(pairs)))


def plain(text: str, tensor: Callable[[int, str], Any]) -> dict[str, Any]:
    """What the State held, by name: state dicts, and plain values beside them (see :func:`graph.plain`)."""
    found: dict[str, Any] = {}
    for name, part in _parts(text):
        value = graph.plain(part, tensor)
        if name == VALUES and isinstance(value, dict):
            found.update(value)
        elif isinstance(value, dict) and value.keys() == {"state_dict", "names"}:
            found[name] = value["state_dict"]  # an optimizer: the names are there to find parameters again
        else:
            found[name] = value
    return found


def has_files(text: str) -> bool:
    """Whether it is one of the user's own files. Raises :class:`Permanent` for text that is no tree."""
    return [name for name, _ in _parts(text)] == [FILES]


def files(text: str, tensor: Callable[[int, str], Any]) -> dict[str, Any]:
    """The user's own files by name, each what ``tensor`` gives for it. Raises :class:`Permanent` for any other tree."""
    found = graph.plain(dict(_parts(text))[FILES], tensor)
    if not isinstance(found, dict):
        raise Permanent("a tree is damaged: its files are no files by name")
    return found


def _parts(text: str) -> list[tuple[str, str]]:
    try:
        parts = json.loads(text)[_PARTS]
        return [(name, json.dumps(part)) for name, part in parts.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError) as error:
        raise Permanent(f"a tree is damaged: it is no JSON of named parts ({type(error).__name__})") from None
