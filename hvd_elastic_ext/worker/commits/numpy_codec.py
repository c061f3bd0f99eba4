"""NumPy's arrays, scalars and types as plain data.

NumPy's own way to write them is not fit for bytes that came over the network: an
array can be told there what its type is, and so be made to take any bytes for
pointers. Here a type is a word, and an array of it is as long as its bytes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, Final

_KINDS: Final = "biufcmMSU"
"""Truth values, numbers, times and text of a fixed width: types that are told by one word."""


def reduced(value: Any) -> tuple[Any, ...] | None:
    """How to make ``value`` again, as a pickler wants it; None for what is not NumPy's, or not plain."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic, numpy.dtype)):
        return None
    if isinstance(value, numpy.dtype):
        return (dtype_at, (value.str,)) if _is_word(value) else None
    if isinstance(value, numpy.generic):
        return (scalar_at, (value.dtype.str, value.tobytes())) if _is_word(value.dtype) else None
    if type(value) is not numpy.ndarray:
        return None
    if value.dtype == object:
        return objects_at, (value.shape, list(value.flat))
    if not _is_word(value.dtype):
        return None
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    return array_at, (value.dtype.str, value.shape, order, value.tobytes(order))


def array_at(word: str, shape: Sequence[int], order: str, data: bytes) -> Any:
    """An array of plain elements, writable. Raises ``ValueError`` or ``TypeError`` for what is none."""
    import numpy

    dtype, shape = dtype_at(word), tuple(shape)
    if not data and 0 in (dtype.itemsize, math.prod(shape)):
        return numpy.zeros(shape, dtype)
    return numpy.frombuffer(data, dtype).reshape(shape, order="F" if order == "F" else "C").copy("K")


def objects_at(shape: Sequence[int], items: Sequence[Any]) -> Any:
    """An array of objects."""
    import numpy

    flat = numpy.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        flat[index] = item
    return flat.reshape(tuple(shape))


def scalar_at(word: str, data: bytes) -> Any:
    """One number, time or text."""
    return array_at(word, (1,), "C", data)[0]


def dtype_at(word: str) -> Any:
    """The type that is called ``word``. Raises ``TypeError`` for one that is not plain."""
    import numpy

    dtype = numpy.dtype(word) if isinstance(word, str) else None
    if dtype is None or not _is_word(dtype):
        raise TypeError(f"{word!r} is no plain type of NumPy's")
    return dtype


def _is_word(dtype: Any) -> bool:
    return dtype.kind in _KINDS and dtype.metadata is None
