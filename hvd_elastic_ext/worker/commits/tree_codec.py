"""Trees of state as bytes: tensors are taken out, everything else is copied through and through.

Writing is pickling, because plain values of a State can be anything. Reading what
came over the network is not unpickling at large: only types and functions are
found that hold plain data, that this process's own State holds too, or that
the user has admitted. Whoever could reach a training port must not be able
to run code here.
"""

from __future__ import annotations

import enum
import io
import operator
import pickle
import struct
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from hvd_elastic_ext.core import state_limits
from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.worker.commits import guard, numpy_codec

Name = state_limits.Name
PLAIN: Final = guard.PLAIN
REACHING: Final = guard.REACHING

_SLOT: Final = (__name__, "tensor_at")

_EARLY_3_11: Final = (getattr, operator.or_)
"""What members of enumerations, and several flags as one, were pickled with once."""

_LONGEST_WHY: Final = 300

_UNREADABLE: Final = (
    pickle.UnpicklingError, EOFError, AttributeError, LookupError, ImportError, ValueError, TypeError,
    ArithmeticError, RuntimeError, AssertionError, MemoryError, struct.error,
)  # fmt: skip
"""What reading damaged or alien bytes ends in."""


def tensor_at(index: int, kind: str = "") -> Any:
    """Stands in written trees where a tensor was; reading puts something else in its place."""
    raise pickle.UnpicklingError("a tensor's place outside a commit")


def sparse_at(indices: Tensor, values: Tensor, size: Sequence[int]) -> Tensor:
    """Put a sparse tensor together again. Raises ``TypeError`` for parts that are no tensors."""
    if not isinstance(indices, Tensor) or not isinstance(values, Tensor):
        raise TypeError("a sparse tensor of no tensors")
    return torch.sparse_coo_tensor(indices, values, list(size), is_coalesced=True, check_invariants=True)


def is_parameter(tensor: Tensor) -> bool:
    """True for a module's parameter. Torch's own answer is slow for the thousands that a commit may have."""
    kind = type(tensor)
    return kind is nn.Parameter or (kind is not Tensor and isinstance(tensor, nn.Parameter))


def uuid_at(number: int) -> uuid.UUID:
    """Not the type itself: given a path instead of text, that would rename the file."""
    return uuid.UUID(int=number)


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, tensors: list[Tensor], without: tuple[type, ...]) -> None:
        super().__init__(file, protocol=5)
        self._tensors = tensors
        self._without = without

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is not Tensor and kind is not nn.Parameter and not isinstance(value, Tensor):
            if isinstance(value, self._without) and not isinstance(value, type):
                raise pickle.PicklingError(
                    f"it holds a {type(value).__name__}, which needs a name of its own in the State"
                )
            if isinstance(value, enum.Enum) and value.__reduce_ex__(5)[0] in _EARLY_3_11:
                return type(value), (value.value,)
            if isinstance(value, uuid.UUID):
                return uuid_at, (value.int,)
            return numpy_codec.reduced(value) or NotImplemented
        problem = _unfit(value)
        if problem:
            raise pickle.PicklingError(problem)
        if value.layout == torch.sparse_coo:
            dense = value.detach().coalesce()
            return sparse_at, (dense.indices(), dense.values(), tuple(dense.shape))
        self._tensors.append(value)
        index = len(self._tensors) - 1
        if is_parameter(value):
            return tensor_at, (index, "parameter" if value.requires_grad else "frozen")
        return tensor_at, (index, "leaf") if value.requires_grad and value.is_leaf else (index,)


def _unfit(tensor: Tensor) -> str | None:
    """Why a tensor cannot be committed as what it is; None if it can."""
    kind = type(tensor)
    if tensor.is_quantized or tensor.is_meta:
        return f"{'quantized' if tensor.is_quantized else 'meta'} tensors cannot be committed"
    if tensor.is_nested or tensor.layout not in (torch.strided, torch.sparse_coo):
        return f"{'nested tensors' if tensor.is_nested else 'tensors'} of layout {tensor.layout} cannot be committed"
    if kind is not Tensor and kind is not nn.Parameter:
        if nn.parameter.is_lazy(tensor):
            return "it has parameters that are not initialised yet; run one forward pass first"
        if not isinstance(tensor, nn.Parameter | nn.Buffer):
            return f"tensors of the class {kind.__name__} would come back as plain ones"
    return None


def write(tree: Any, tensors: list[Tensor], *, without: tuple[type, ...] = ()) -> bytes:
    """Return ``tree`` as bytes and append its dense tensors to ``tensors``, uncopied.

    Raises one of :data:`UNWRITABLE` for a value that cannot be written, or that holds one of the types ``without``.
    """
    file = io.BytesIO()
    _Writer(file, tensors, without).dump(tree)
    return file.getvalue()


def write_one(name: str, tree: Any, tensors: list[Tensor], *, without: tuple[type, ...] = ()) -> bytes:
    """As :func:`write`. Raises :class:`Permanent` with ``name`` if the tree cannot be written."""
    try:
        return write(tree, tensors, without=without)
    except UNWRITABLE as error:
        raise Permanent(
            f"state.{name} ({type(tree).__name__}) cannot be committed: {error}; "
            "give it state_dict and load_state_dict, or keep it outside the State"
        ) from error


def write_named(trees: Mapping[str, Any], tensors: list[Tensor], *, without: tuple[type, ...] = ()) -> bytes:
    """As :func:`write_one`, for many trees at once; the error names the one that cannot be written."""
    known = len(tensors)
    try:
        return write(trees, tensors, without=without)
    except UNWRITABLE:
        del tensors[known:]
        for name, tree in trees.items():
            write_one(name, tree, [], without=without)
        raise


def copied(tree: Any) -> Any:
    """A copy that shares nothing with ``tree``. (``copy.deepcopy`` would copy all that a tensor is a view of.)"""
    if isinstance(tree, _ATOMS):
        return tree
    tensors: list[Tensor] = []
    data = write(tree, tensors)
    return read(data, lambda index, kind: tensors[index].detach().clone(), admitted=None)


_ATOMS: Final = (bool, int, float, complex, str, bytes, type(None), torch.dtype)


UNWRITABLE: Final = (pickle.PicklingError, TypeError, AttributeError, NotImplementedError, RuntimeError, ValueError)


def is_writable(value: object, *, without: tuple[type, ...] = ()) -> bool:
    """True if ``value`` can be committed as it is, and holds nothing of the types ``without``."""
    try:
        write(value, [], without=without)
    except UNWRITABLE:
        return False
    return True


class _Reader(pickle.Unpickler):
    """For what this process, or an earlier one in its slot, has written itself."""

    def __init__(self, data: bytes, at: Callable[[int, str], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._at = at

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == _SLOT:
            return lambda index, kind="": self._at(index, kind)
        return super().find_class(module, name)


def read(
    data: bytes, at: Callable[[int, str], Any], *, admitted: Collection[Name] | None, source: str = "another rank"
) -> Any:
    """Read a tree; ``at(index, kind)`` gives what stands for a tensor.

    ``admitted``: what may be found besides plain data; None for bytes that this
    process's own memory holds. Raises :class:`Permanent` for anything else, and for damaged bytes.
    """
    try:
        if admitted is None:
            return _Reader(data, at).load()
        return guard.Guard(data, at, admitted, source=source).load()
    except state_limits.Odd as error:
        raise Permanent(f"the State of {source} is not read: {error}; it is damaged or crafted") from error
    except _UNREADABLE as error:
        why = " ".join(str(error).split())[:_LONGEST_WHY] or type(error).__name__
        raise Permanent(f"the State of {source} cannot be read: {why}; run the same code on every rank") from error


class _Anything:
    """Stands for any type or function, and for what it makes."""

    def __new__(cls, *_: Any, **__: Any) -> _Anything:
        return super().__new__(cls)

    def _take(self, *_: Any, **__: Any) -> None: ...

    __init__ = __setstate__ = __setitem__ = append = extend = add = update = _take


class _Collector(pickle.Unpickler):
    found: set[Name]

    def find_class(self, module: str, name: str) -> Any:
        self.found.add((module, name))
        return _Anything


def names_in(data: bytes) -> frozenset[Name]:
    """The types and functions that a tree written by this very process refers to. Nothing of it is made or called."""
    collector = _Collector(io.BytesIO(data))
    collector.found = set()
    collector.load()
    return frozenset(collector.found)


def names_of(values: Iterable[Any]) -> frozenset[Name]:
    """Names under which types or functions are found."""
    return frozenset((value.__module__, value.__qualname__) for value in values)
