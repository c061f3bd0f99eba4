"""What reads trees that came from elsewhere: plain names only, and no more of them than their text allows."""

from __future__ import annotations

import collections
import dataclasses
import enum
import io
import operator
import pickle
import re
import struct
import sys
import sysconfig
import types
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from hvd_elastic_ext.core import state_limits
from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.core.state_limits import Name
from hvd_elastic_ext.worker.commits import numpy_codec

_MANIFEST: Final = "hvd_elastic_ext.worker.commits.tree_codec"

PLAIN: Final[frozenset[Name]] = frozenset(
    (module, name)
    for module, names in {
        "builtins": "bytearray complex dict float frozenset int list object range set slice str tuple",
        "collections": "Counter OrderedDict defaultdict deque",
        "datetime": "date datetime time timedelta timezone",
        "decimal": "Decimal",
        "fractions": "Fraction",
        "pathlib": "PosixPath PurePosixPath PureWindowsPath",
        "pathlib._local": "PosixPath PurePosixPath PureWindowsPath",  # Python 3.13
        "types": "SimpleNamespace",
        "torch": "Size device",
        "torch.serialization": "_get_layout",
        numpy_codec.__name__: "array_at dtype_at objects_at scalar_at",
        _MANIFEST: "tensor_at sparse_at uuid_at",
    }.items()
    for name in names.split()
)
"""What may be found without being asked: none of it does more than hold data, whatever it is called with.

A test calls each with all of them.
"""

REACHING: Final[frozenset[Name]] = frozenset(
    (module, name)
    for module, names in {
        "builtins": "__import__ breakpoint compile delattr eval exec getattr globals input locals open setattr vars",
        "operator": "attrgetter methodcaller",
        "types": "CodeType FunctionType MethodType",
        "functools": "reduce",
    }.items()
    for name in names.split()
)
"""With one of these anything can be reached from anything: no State is a reason to take them from others."""

_REACHING_MODULES: Final = re.compile(
    r"(_io|_pickle|code|ctypes|importlib|io|marshal|nt|os|pickle|posix|pty|runpy|shutil|subprocess|sys)(\.|$)"
)

_NAMES: Final = re.compile(r"[\w.<>]{1,300}")


class Guard(pickle._Unpickler):
    """For what came from elsewhere. Slower, but only an unpickler in Python can be kept from changing what it found."""

    stack: list[Any]
    metastack: list[list[Any]]
    append: Callable[[Any], None]
    read: Callable[[int], bytes]

    def __init__(self, data: bytes, at: Callable[[int, str], Any], admitted: Collection[Name], *, source: str) -> None:
        super().__init__(io.BytesIO(data), fix_imports=False)
        self._at = at
        self._admitted = admitted
        self._source = source
        self._slot = self._tensor
        self._found: list[Any] = [self._slot]
        self._tensors: dict[tuple[int, str], Any] = {}
        self._allowance = state_limits.Allowance(len(data))
        self._length = len(data)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (_MANIFEST, "tensor_at"):
            return self._slot
        found = self._permitted(module, name)
        self._found.append(found)
        return found

    def _permitted(self, module: str, name: str) -> Any:
        if (module, name) in PLAIN:
            return super().find_class(module, name)
        if not _NAMES.fullmatch(f"{module}.{name}"):
            raise Permanent(
                f"the State of {self._source} holds {f'{module}.{name}'[:80]!r}, which is no name of anything"
            )
        what = f"the State of {self._source} holds {module}.{name}"
        if (module, name) in REACHING or _REACHING_MODULES.match(module):
            raise Permanent(f"{what}, with which anything could be run here; keep it out of the State")
        if (module, name) in self._admitted:
            return super().find_class(module, name)
        found = _known_record(module, name)
        if found is None:
            raise Permanent(
                f"{what}, which this process's State does not; "
                f"hold one from the start, or call elastic.admit({name}) before training"
            )
        return found

    def _tensor(self, index: int, kind: str = "") -> Any:
        """One tensor is one thing: whoever refers to it often gets no copy each time."""
        place = (operator.index(index), str(kind))
        if place not in self._tensors:
            self._tensors[place] = self._at(*place)
        return self._tensors[place]

    def _refuse(self, what: str) -> Permanent:
        return Permanent(f"the State of {self._source} would {what}; it is not read")

    def _check_call(self, function: Any, args: Any, kwargs: Any = ()) -> None:
        if type(args) is not tuple:
            raise self._refuse(f"call something with a {type(args).__name__} of arguments")
        name = _plain_maker(function)
        if name is not None and kwargs:
            raise self._refuse(f"call {name[1]} in an odd way")
        if name is not None:
            self._allowance.call(name, args)

    def load_reduce(self) -> None:
        self._check_call(*self.stack[-2:])
        super().load_reduce()  # type: ignore[misc]

    def load_newobj(self) -> None:
        self._check_call(*self.stack[-2:])
        super().load_newobj()  # type: ignore[misc]

    def load_newobj_ex(self) -> None:
        self._check_call(*self.stack[-3:])
        super().load_newobj_ex()  # type: ignore[misc]

    def load_build(self) -> None:
        """Fill in what was made here; what was found, or is there once for all, is not to be changed."""
        target = self.stack[-2]
        if isinstance(target, Tensor | enum.Enum) or any(target is found for found in self._found):
            what = f"a {type(target).__name__}" if isinstance(target, Tensor) else repr(target)
            raise self._refuse(f"change {what} itself")
        self._check_filled(target, "__setstate__", plain=_WITH_STATE)
        super().load_build()  # type: ignore[misc]

    def _check_filled(self, target: Any, *methods: str, plain: tuple[type, ...]) -> None:
        """Refuse to fill a plain value but as it is written, and by a method that its own attributes stand for."""
        is_plain = _name_of(type(target)) in state_limits.TAKES and not isinstance(target, plain)
        if is_plain or any(method in getattr(target, "__dict__", ()) for method in methods):
            raise self._refuse(f"fill a {type(target).__name__} in an odd way")

    def _check_items(self, target: Any, keys: Sequence[Any]) -> None:
        # What takes slices grows by them, and arrays by what they are spread to.
        if isinstance(target, list | bytearray | collections.deque) or hasattr(type(target), "dtype"):
            raise self._refuse(f"fill a {type(target).__name__} in an odd way")
        self._check_filled(target, plain=(dict,))
        self._allowance.hashed(keys, into=target)

    def load_append(self) -> None:
        self._check_filled(self.stack[-2], "append", plain=(list, collections.deque))
        super().load_append()  # type: ignore[misc]

    def load_appends(self) -> None:
        self._check_filled(self.metastack[-1][-1], "append", "extend", plain=(list, collections.deque))
        super().load_appends()  # type: ignore[misc]

    def load_setitem(self) -> None:
        self._check_items(self.stack[-3], self.stack[-2:-1])
        super().load_setitem()  # type: ignore[misc]

    def load_setitems(self) -> None:
        self._check_items(self.metastack[-1][-1], self.stack[::2])
        super().load_setitems()  # type: ignore[misc]

    def load_additems(self) -> None:
        target = self.metastack[-1][-1]
        if not isinstance(target, set):
            raise self._refuse("fill something that is no set as if it were one")
        self._allowance.hashed(self.stack, into=target)
        super().load_additems()  # type: ignore[misc]

    def load_frozenset(self) -> None:
        self._allowance.hashed(self.stack)
        super().load_frozenset()  # type: ignore[misc]

    def load_bytearray8(self) -> None:
        """Python's own makes room first for as many bytes as it is told there are."""
        (length,) = struct.unpack("<Q", self.read(8))
        data = self.read(min(length, self._length + 1))
        if len(data) < length:
            raise EOFError("it ends too early")
        self.append(bytearray(data))

    def load_alien(self) -> None:
        """What protocol 5 does not write."""
        raise pickle.UnpicklingError("an operation of an older protocol")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        **dict.fromkeys(b"".join((pickle.DICT, pickle.INST, pickle.OBJ)), load_alien),
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.NEWOBJ_EX[0]: load_newobj_ex,
        pickle.BUILD[0]: load_build,
        pickle.APPEND[0]: load_append,
        pickle.APPENDS[0]: load_appends,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.ADDITEMS[0]: load_additems,
        pickle.FROZENSET[0]: load_frozenset,
        pickle.BYTEARRAY8[0]: load_bytearray8,
    }


_WITH_STATE: Final = (collections.OrderedDict, types.SimpleNamespace)
"""Plain values that have attributes."""


def _name_of(what: type | types.FunctionType | types.BuiltinFunctionType) -> Name:
    # Python 3.13 says so of what is found at pathlib in all of them.
    return "pathlib" if what.__module__ == "pathlib._local" else what.__module__, what.__qualname__


def _plain_maker(function: Any) -> Name | None:
    """The name of the plain type or function that ``function`` is, or that makes the values of the type it is."""
    if not isinstance(function, type):
        is_known = isinstance(function, types.FunctionType | types.BuiltinFunctionType)
        return _name_of(function) if is_known and _name_of(function) in state_limits.TAKES else None
    for kind in function.__mro__:
        if (kind.__new__, kind.__init__) != (function.__new__, function.__init__):  # type: ignore[misc]
            return None
        if _name_of(kind) in state_limits.TAKES:
            return _name_of(kind) if kind is not object or function is object else None
    return None


def _known_record(module: str, name: str) -> Any:
    """A plain record type (dataclass, enumeration, named tuple) of the user's own modules, which are loaded already."""
    found = getattr(sys.modules.get(module), name, None)
    if isinstance(found, torch.dtype):
        return found
    # By the name it was defined under: what a script imports is not its own.
    if not isinstance(found, type) or (found.__module__, found.__qualname__) != (module, name) or not _is_users(module):
        return None
    is_record = dataclasses.is_dataclass(found) or issubclass(found, enum.Enum)
    return found if is_record or (issubclass(found, tuple) and hasattr(found, "_fields")) else None


def _is_users(module: str) -> bool:
    """True for the training script and modules beside or below it, but for what is installed there."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__":
        return True
    if script is None or file is None:
        return False
    path = Path(file).resolve()
    return Path(script).resolve().parent in path.parents and not _is_installed(path)


def _is_installed(path: Path) -> bool:
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    return Path(sysconfig.get_path("stdlib")).resolve() in path.parents
