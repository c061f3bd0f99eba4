"""Loads an earlier checkpoint into a State that has not trained yet: a file of `torch.save` or of our own export.

One rank with the file is enough: in the first sync, the lowest rank that has it sends to the others.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, optim

from hvd_elastic_ext.checkpoint.conversion.import_torch import import_torch_save
from hvd_elastic_ext.core.errors import Permanent, StateError
from hvd_elastic_ext.worker.parts import Part
from hvd_elastic_ext.worker.parts.torch_parts import GeneratorPart, ModelPart, OptimizerPart, StatefulPart
from hvd_elastic_ext.worker.parts.user_parts import SnapshotPart
from hvd_elastic_ext.worker.state.contents import Inventory

Names = Mapping[str, str | None] | Iterable[str] | None
"""The values to load: names in the State, and their names in the file if these differ. A None in place of a file's
name means the whole file.

Without names, the file must have exactly the names of the State.
"""

Source = str | os.PathLike[str] | Mapping[str, Any]
"""The path of a file, or a mapping with the content of such a file."""

DDP: Final = "module."
"""The prefix that torch's DistributedDataParallel adds to every name."""
MAX_NAMED: Final = 3
"""Most names in one error message."""
_COMMON: Final = {
    "params", "lr", "weight_decay", "decoupled_weight_decay", "foreach", "maximize", "capturable", "differentiable",
    "fused",
}  # fmt: skip
"""Arguments that do not identify a class of optimizer: several have them, or only some versions of torch."""


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
            where = self._where if word else "what other ranks look for"
            raise StateError(f"{where}: no rank has such a file; give its path as it is on at least one host")


def named(source: Source) -> str:
    """Return the name of the source for messages."""
    return "what was given" if isinstance(source, Mapping) else os.fspath(source)


def _put(inventory: Inventory, tree: Any, names: Names) -> None:
    if not isinstance(tree, Mapping):
        raise StateError(f"it is a {type(tree).__name__}, not a dict with names")
    chosen = _chosen(inventory, tree, names)
    ready = {name: _fitted(inventory.parts[name], given, name) for name, given in chosen if name in inventory.parts}
    for name, given in ready.items():
        try:
            inventory.parts[name].restore(given)
        except Exception as error:  # a user's own load_state_dict may raise anything
            raise StateError(f"{name}: {' '.join(str(error).split()) or type(error).__name__}") from error
    for name, given in chosen:
        if name not in ready:
            setattr(inventory.owner, name, given)


def _chosen(inventory: Inventory, tree: Mapping[str, Any], names: Names) -> list[tuple[str, Any]]:
    """Return names of the State with their values. Raises :class:`StateError` for names that the State or the source
    does not have."""
    values = inventory.values()
    known = {*inventory.parts, *values} - {""}
    if names is None:
        foreign = [name for name in tree if not _has(inventory, known, name)]
        # A value of None may be absent: for example the optimizer of a State without one.
        absent = sorted(name for name in known - tree.keys() if values.get(name, name) is not None)
        _demand(foreign, absent, "; say by names={…} what is to be taken")
        return list(tree.items())
    wanted = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    foreign = [name for name in wanted if not _has(inventory, known, name)]
    absent = [there for there in wanted.values() if there is not None and there not in tree]
    _demand(foreign, absent, f"; it has {_listed(map(str, tree))}" if absent else "")
    return [(name, tree if there is None else tree[there]) for name, there in wanted.items()]


def _has(inventory: Inventory, known: set[str], name: object) -> bool:
    """Whether a State has ``name``. The State of a mixin also has attributes of the user's class."""
    snapshot = inventory.parts.get("")
    if name in known or not isinstance(snapshot, SnapshotPart):
        return name in known
    return isinstance(name, str) and not name.startswith("_") and name in vars(inventory.owner)


def _demand(foreign: Sequence[Any], absent: Sequence[str], what: str) -> None:
    problems = [f"the State has no {_listed(map(str, foreign))}"] if foreign else []
    problems += [f"it has no {_listed(absent)}"] if absent else []
    if problems:
        raise StateError(" and ".join(problems) + what)


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - MAX_NAMED} more" if len(known) > MAX_NAMED else ""
    return ", ".join(map(repr, known[:MAX_NAMED])) + more


def _fitted(part: Part, given: Any, name: str) -> Any:
    """Return ``given`` in the form that the part restores. Raises :class:`StateError` if it does not fit the part."""
    if isinstance(part, ModelPart):
        problems, given = _of_model(part, given)
    elif isinstance(part, OptimizerPart):
        problems, given = _of_optimizer(part, given)
    elif isinstance(part, StatefulPart | GeneratorPart):
        return given
    else:
        raise StateError(f"{name} is kept in a way of your own; load it yourself, before the State is built")
    for problem in problems:
        raise StateError(f"{name}: {problem}")
    return given


def _of_model(part: ModelPart, given: Any) -> tuple[Iterator[str], Any]:
    live = part.capture()
    if not isinstance(given, Mapping):
        return iter(["it is not a state_dict"]), None
    if given and all(str(key).startswith(DDP) for key in given) and not all(key.startswith(DDP) for key in live):
        given = {key.removeprefix(DDP): value for key, value in given.items()}

    def problems() -> Iterator[str]:
        foreign, absent = [key for key in given if key not in live], [key for key in live if key not in given]
        if foreign:
            yield f"the model has no {_listed(map(str, foreign))}"
        if absent:
            yield f"there is no {_listed(absent)}"
        for key, value in live.items():
            here, there = _kind(value), _kind(given[key])
            if here != there and (isinstance(value, torch.nn.Parameter) or here[1:] != there[1:]):
                yield f"{key!r} is {_text(there)}, and {_text(here)} in the model"

    return problems(), given


def _kind(value: Any) -> tuple[Any, ...]:
    return (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else (None, None)


def _text(kind: tuple[Any, ...]) -> str:
    if kind[1] is None:
        return "no tensor"
    return f"{'x'.join(map(str, kind[0])) or 'scalar'} {str(kind[1]).removeprefix('torch.')}"


def _of_optimizer(part: OptimizerPart, given: Any) -> tuple[Iterator[str], Any]:
    captured = part.capture()
    if not isinstance(given, Mapping) or not {"state", "param_groups"} <= given.keys():
        return iter(["it is not a state_dict of an optimizer"]), None

    def problems() -> Iterator[str]:
        try:
            there = [len(group["params"]) for group in given["param_groups"]]
        except (TypeError, KeyError):
            yield "it is not a state_dict of an optimizer"
            return
        yield from _of_another_class(part, given["param_groups"])
        here = [len(group["params"]) for group in captured["state_dict"]["param_groups"]]
        if there != here:
            yield f"its groups have {there} parameters, and those of the State's optimizer {here}"

    return problems(), {"state_dict": given, "names": captured["names"]}


def _of_another_class(part: OptimizerPart, groups: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a problem if the groups have the settings of another class of torch: its first step would fail.

    A state_dict does not name its class. So classes with equal settings, such as Adam and AdamW, are not distinguished.
    """
    kinds = {
        name: inspect.signature(kind).parameters.keys() - _COMMON
        for name, kind in vars(optim).items()
        if isinstance(kind, type) and kind is not optim.Optimizer
    }
    known = set[str]().union(*kinds.values())
    here, there = (known.intersection(*each[:1]) for each in (part.value.param_groups, groups))
    fitting = [name for name, settings in kinds.items() if settings == there]
    if fitting and here != there:
        yield (
            f"it is of the class {' or '.join(sorted(fitting))}, and the State's optimizer of {part.class_name}; "
            "make the same optimizer, or leave it out of names={…}"
        )
