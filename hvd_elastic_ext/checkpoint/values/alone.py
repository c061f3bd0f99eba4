"""A value and its tensors as one text, outside of commits: for arguments and results of a function."""

from __future__ import annotations

import base64
import contextlib
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from hvd_elastic_ext.checkpoint.values.read import read

VALUE, TENSORS = "value", "tensors"
_SCALARS: Final = (bool, int, float, str, type(None))


def to_text(value: Any) -> str:
    """Return the text. Raises ``write.Unfit`` for a type outside of the closed list. Plain JSON does not load torch."""
    with contextlib.suppress(RecursionError):  # the other way says what is wrong
        if _is_json(value):
            return json.dumps({VALUE: json.dumps(value, allow_nan=False), TENSORS: []}, allow_nan=False)
    from hvd_elastic_ext.checkpoint.values.write import write

    tensors: list[Any] = []
    return json.dumps({VALUE: write(value, tensors), TENSORS: list(map(_stored, tensors))}, allow_nan=False)


def refusal(error: ValueError, verb: str, *, place: str = "") -> str:
    """Return why :func:`to_text` has refused a value, with the remedy outside of a State.

    ``verb``: what is done with the value, such as "send". ``place``: where it is, unless it is said elsewhere.
    """
    instead = getattr(error, "instead", "").format("it") or "plain values, tensors or NumPy arrays"
    return f"{str(error).partition('; ')[0]}{place}; {verb} {instead.replace('it.state_dict()', 'its state_dict()')}"


def from_text(text: str, *, source: str) -> Any:
    """Return the value, with tensors on the CPU. Imports nothing that the text names. Raises :class:`StateError`."""
    whole = json.loads(text)
    return read(whole[VALUE], lambda number, kind: _tensor(*whole[TENSORS][number], kind=kind), source=source)


def _is_json(value: Any) -> bool:
    """Whether JSON can express the value unchanged."""
    if type(value) is list:
        return all(map(_is_json, value))
    if type(value) is dict:
        return all(type(key) is str and key[:1] != "$" and _is_json(each) for key, each in value.items())
    return type(value) in _SCALARS and (type(value) is not float or math.isfinite(value))


def _stored(tensor: Any) -> list[Any]:
    import torch

    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = dense.reshape(-1).view(torch.uint8).numpy().tobytes()
    return [str(dense.dtype).removeprefix("torch."), list(dense.shape), base64.b64encode(data).decode("ascii")]


def _tensor(dtype: str, shape: list[int], data: str, *, kind: str) -> Any:
    import torch

    types: Mapping[str, Any] = vars(torch)
    if not isinstance(types.get(dtype), torch.dtype):
        raise ValueError(f"{dtype} is not a type of a tensor")
    tensor = torch.empty(shape, dtype=types[dtype])
    if tensor.numel():
        raw = torch.frombuffer(bytearray(base64.b64decode(data)), dtype=torch.uint8)
        tensor = raw.view(types[dtype]).reshape(shape)
    if kind in ("parameter", "frozen"):
        return torch.nn.Parameter(tensor, requires_grad=kind == "parameter")
    return tensor.requires_grad_() if kind == "leaf" else tensor
