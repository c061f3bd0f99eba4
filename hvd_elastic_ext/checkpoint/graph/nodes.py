"""A tree of state as a graph of plain data.

Atoms (None, truth values, numbers, text and bytes) stand for themselves. All else
is a node: one object is one thing, however often it is referred to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from hvd_elastic_ext.core.errors import Permanent

Value = Any
"""An atom or a node."""

ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})

OWN: Final = {
    "array": ("hvd_elastic_ext.worker.commits.numpy_codec", "array_at"),
    "dtype": ("hvd_elastic_ext.worker.commits.numpy_codec", "dtype_at"),
    "objects": ("hvd_elastic_ext.worker.commits.numpy_codec", "objects_at"),
    "scalar": ("hvd_elastic_ext.worker.commits.numpy_codec", "scalar_at"),
    "sparse": ("hvd_elastic_ext.worker.commits.tree_codec", "sparse_at"),
    "uuid": ("hvd_elastic_ext.worker.commits.tree_codec", "uuid_at"),
}
"""The format's own words for what the worker's writer puts into trees for arrays, sparse tensors and the like."""

TENSOR: Final = ("hvd_elastic_ext.worker.commits.tree_codec", "tensor_at")
"""What that writer calls where a tensor was."""

KINDS: Final = ("", "parameter", "frozen", "leaf")
"""What sort of tensor was there: a plain one, a parameter that is or is not trained, a leaf with a gradient."""

_REACHING: Final = {
    "builtins": "__import__ breakpoint compile delattr eval exec getattr globals input locals open setattr vars",
    "operator": "attrgetter methodcaller",
    "types": "CodeType FunctionType MethodType",
    "functools": "reduce",
}
_REACHING_MODULES: Final = re.compile(
    r"(_io|_pickle|code|ctypes|importlib|io|marshal|nt|os|pickle|posix|pty|runpy|shutil|subprocess|sys)(\.|$)"
)
"""With these anything can be reached from anything. The worker's reader refuses the same; a test holds both alike."""

_MODULE: Final = re.compile(r"[\w-]+(\.[\w-]+)*")
_LONGEST: Final = 1000


@dataclass(slots=True, frozen=True)
class Name:
    """A type, function or constant by its name."""

    module: str
    name: str


@dataclass(slots=True, frozen=True)
class Tensor:
    """A tensor of the commit: its number there, and one of :data:`KINDS`."""

    index: int
    kind: str


@dataclass(slots=True, eq=False)
class Row:
    """``kind``: list, tuple, set or frozenset."""

    kind: str
    items: list[Value] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Table:
    """A dict, as pairs in its order."""

    pairs: list[tuple[Value, Value]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Octets:
    """A bytearray: unlike bytes, it may be one in several places."""

    data: bytes


class _Absent:
    """There is no state; None is one."""


ABSENT: Final = _Absent()


@dataclass(slots=True, eq=False)
class Made:
    """What ``what`` makes of ``args`` and ``kwargs``, and what it is filled with then, in the order of these fields.

    ``how``: "call", or "new" for a class whose ``__init__`` is passed over. ``setter``, if there is one, is called
    with what was made and the state.
    """

    how: str
    what: Value
    args: list[Value] = field(default_factory=list)
    kwargs: list[tuple[str, Value]] = field(default_factory=list)
    appended: list[Value] = field(default_factory=list)
    pairs: list[tuple[Value, Value]] = field(default_factory=list)
    setter: Value = ABSENT
    state: Value = ABSENT


def named(module: str, name: str) -> Name:
    """The name, if it may be one of plain data or the user's. Raises :class:`Permanent` if no reader would take it."""
    if (
        len(module) + len(name) > _LONGEST
        or not _MODULE.fullmatch(module)
        or not all(part.isidentifier() for part in name.split("."))
    ):
        raise Permanent(f"{module[:80]!r}, {name[:80]!r} is no name of anything; look for another checkpoint")
    if name.split(".")[0] in _REACHING.get(module, "").split() or _REACHING_MODULES.match(module):
        raise Permanent(f"the State holds {module}.{name}, with which anything could be run; keep it out of the State")
    # Python 3.13 says so of what is found at pathlib in all of them.
    return Name("pathlib" if module == "pathlib._local" else module, name)
