"""Loads an earlier checkpoint into a State that has not trained yet: a file of `torch.save` or of our own export.

One rank with the file is enough: in the first sync, the lowest rank that has it sends to the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.checkpoint.conversion.import_torch import import_torch_save
from hvd_elastic_ext.checkpoint.values.read import as_live
from hvd_elastic_ext.core.errors import Permanent, StateError
from hvd_elastic_ext.worker.parts import Part
from hvd_elastic_ext.worker.parts.torch_parts import listed
from hvd_elastic_ext.worker.parts.user_parts import SnapshotPart
from hvd_elastic_ext.worker.state.contents import Inventory

Names = Mapping[str, str | None] | Iterable[str] | None
"""The values to load: names in the State, and their names in the file if these differ. A None in place of a file's
name means the whole file.

Without names, the file must have exactly the names of the State.
"""

Source = str | os.PathLike[str] | Mapping[str, Any]
"""The path of a file, or a mapping with the content of such a file."""


class Importing:
    """The import of one State, and the ranks' reports about it in the first sync."""

    ABSENT: Final = 1
    HELD: Final = 2

    def __init__(self) -> None:
        self.word = 0
        self._where = ""

    def take(self, source: Source, inventory: Inventory, names: Names) -> bool:
        """Load the source into the State. Return False if the file does not exist here. Raises :class:`StateError`;
        then some parts may have changed."""
        self._where = named(source)
        tree: Any = source
        if not isinstance(source, Mapping):
            if not os.path.lexists(source):
                self.word = self.ABSENT
                return False
            tree = import_torch_save(Path(source))
        try:
            _put(inventory, tree, names)
        except Permanent as error:
            raise StateError(f"{self._where}: {error}") from error
        self.word = self.HELD
        return True

    def settle(self, words: Sequence[int], *, started: bool) -> None:
        """Check the reports of all ranks. Raises :class:`StateError` if some have looked for a file and none has it."""
        word, self.word = self.word, 0
        if not started and self.HELD not in words and self.ABSENT in words:
            where = self._where if word else "the file that other ranks look for"
            raise StateError(f"{where}: no rank has it; give its path as it is on at least one host")


def named(source: Source) -> str:
    """Return the name of the source for messages."""
    return "the given dict" if isinstance(source, Mapping) else os.fspath(source)


def _put(inventory: Inventory, tree: Any, names: Names) -> None:
    if not isinstance(tree, Mapping):
        raise StateError(f"it holds a value of type {type(tree).__name__}, not a dict with names")
    chosen = _chosen(inventory, tree, names)
    ready = {name: _fitted(inventory.parts[name], given, name) for name, given in chosen if name in inventory.parts}
    live = inventory.values()
    values = {name: _as_live(live.get(name), given, name) for name, given in chosen if name not in ready}
    for name, fitted in ready.items():
        try:
            inventory.parts[name].restore(fitted)
        except Exception as error:  # a user's own load_state_dict may raise anything
            raise StateError(f"{name}: {' '.join(str(error).split()) or type(error).__name__}") from error
    for name, value in values.items():
        setattr(inventory.owner, name, value)


def _chosen(inventory: Inventory, tree: Mapping[str, Any], names: Names) -> list[tuple[str, Any]]:
    """Return names of the State with their values. Raises :class:`StateError` for names that the State or the source
    does not have."""
    values = inventory.values()
    known = {*inventory.parts, *values} - {""}
    if names is None:
        foreign = [name for name in tree if not _has(inventory, known, name)]
        # A value of None may be absent: for example the optimizer of a State without one.
        absent = sorted(name for name in known - tree.keys() if values.get(name, name) is not None)
        _demand(foreign, absent, "; say with names={…} what to take")
        return list(tree.items())
    wanted = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    foreign = [name for name in wanted if not _has(inventory, known, name)]
    absent = [in_file for in_file in wanted.values() if in_file is not None and in_file not in tree]
    _demand(foreign, absent, f"; it has {listed(list(map(str, tree)))}" if absent else "")
    return [(name, tree if in_file is None else tree[in_file]) for name, in_file in wanted.items()]


def _has(inventory: Inventory, known: set[str], name: object) -> bool:
    """Whether a State has ``name``. The State of a mixin also has attributes of the user's class."""
    snapshot = inventory.parts.get("")
    if name in known or not isinstance(snapshot, SnapshotPart):
        return name in known
    return isinstance(name, str) and not name.startswith("_") and name in vars(inventory.owner)


def _demand(foreign: Sequence[Any], absent: Sequence[str], what: str) -> None:
    problems = [f"the State has no {listed(list(map(str, foreign)))}"] if foreign else []
    problems += [f"it has no {listed(absent)}"] if absent else []
    if problems:
        raise StateError(" and ".join(problems) + what)


def _fitted(part: Part, given: Any, name: str) -> Any:
    try:
        return part.fitted(given)
    except StateError as error:
        raise StateError(f"{name}: {error}") from error


def _as_live(live: Any, given: Any, name: str) -> Any:
    try:
        return as_live(live, given)
    except StateError as error:
        raise StateError(f"{name}: {error}") from error
