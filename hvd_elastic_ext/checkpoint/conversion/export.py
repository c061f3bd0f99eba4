"""Exports a checkpoint for other programs: one file of `torch.save`, of safetensors or of Keras; or the user's own
files.

Nothing in the checkpoint is run, imported or unpickled. A file of the first two contains tensors, plain containers and
plain values; a value of a user's class becomes a dict of its fields (:func:`plain`). Files of Keras: `keras_files.py`.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.checkpoint.archive import read
from hvd_elastic_ext.checkpoint.archive.read import Checkpoint
from hvd_elastic_ext.checkpoint.conversion import keras_files
from hvd_elastic_ext.checkpoint.format import descriptions, result_file, tensor_places
from hvd_elastic_ext.checkpoint.format.descriptions import Description
from hvd_elastic_ext.checkpoint.format.errors import Damaged
from hvd_elastic_ext.checkpoint.format.manifest import LOCAL, RESULTS
from hvd_elastic_ext.checkpoint.format.result_file import Result
from hvd_elastic_ext.checkpoint.format.tensor_places import TensorPlace
from hvd_elastic_ext.checkpoint.format.user_files import FILES, put
from hvd_elastic_ext.checkpoint.stores.store import Store
from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.checkpoint.values.read import TensorAt, plain
from hvd_elastic_ext.core.errors import Permanent, StateError, UsageError
from hvd_elastic_ext.core.json_text import to_text

if TYPE_CHECKING:
    from torch import Tensor

PLAIN: Final = "plain"
"""Metadata key in a safetensors file for everything that is not a tensor, as JSON."""


def export(
    store: Store, name: str, to: Path, *, replace: bool = False, call: int | None = None, model: str | None = None
) -> int:
    """Write the checkpoint ``name`` to the file ``to``, ``.pt``, ``.safetensors``, ``.keras`` or ``.weights.h5``, and
    return the number of tensors. A checkpoint of the user's own files is written to the new folder ``to``; the number
    of files is returned. Every byte is verified first. ``replace``: replace a file of that name. ``call``: the finished
    training call whose last content is written, instead of that of the call in progress. ``model``: for files of Keras,
    a function of the user's that returns the model (:func:`keras_files.write`). Raises :class:`UsageError` for another
    ending of the name, for an existing file or folder and for a call that is not there, :class:`Damaged`, and
    :class:`Permanent` if it cannot be written.
    """
    write = _writer(to, model)
    content = _content(read.opened(store, name), call)
    draft = to.with_name(f".{secrets.token_hex(4)}.{to.name}")  # with the same ending, which Keras demands
    parts = trees.decode(content.tree)
    if parts.keys() == {FILES}:
        if write is not None or os.path.lexists(to):
            raise UsageError(f"{to}: the checkpoint holds files that a function of yours wrote; give it a new folder")
        return _write_folder(content, draft, to)
    if write is None:
        raise UsageError(
            f"{to}: the ending says what is written; give it .pt or .safetensors, or for a Keras model .keras or "
            ".weights.h5"
        )
    if not replace and to.is_file():
        raise UsageError(f"{to} already exists; name another file, or give --force to replace it")
    tensors = _Tensors(content)
    value = _named(parts, tensors.at)
    try:
        count = write(value, content.descriptions, draft)
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(to)
    except OSError as error:
        raise Permanent(f"{to}: {error.strerror or error}; nothing was exported") from error
    finally:
        draft.unlink(missing_ok=True)
    return len(tensors.taken) if count is None else count


class _Content(NamedTuple):
    """The content of a State."""

    tree: bytes
    places: Sequence[TensorPlace]
    """Where its tensors are in those bytes."""
    commit: Callable[[], bytearray | memoryview]
    """Returns the bytes of its tensors."""
    descriptions: Mapping[str, Description]
    """What is known of its parts besides their contents."""


def _content(checkpoint: Checkpoint, call: int | None) -> _Content:
    now = checkpoint.manifest.record.call
    if call is not None and call < 1:
        raise UsageError(f"--call {call}: the calls have the numbers 1, 2, 3 …; give one of these, or leave out --call")
    if call is not None and call != now:
        return _finished(checkpoint, call)

    def commit() -> bytearray:
        data = bytearray(checkpoint.record(b"").total)
        checkpoint.fill(memoryview(data), b"")
        return data

    return _Content(checkpoint.tree, checkpoint.places.all, commit, _descriptions(checkpoint))


def _finished(checkpoint: Checkpoint, call: int) -> _Content:
    manifest, shown = checkpoint.manifest, f"checkpoint {checkpoint.name}"
    entry = next((each for each in manifest.results if each.call == call), None)
    if entry is None:
        calls = [str(each.call) for each in manifest.results if each.call]
        results = f", with the results of the finished calls {', '.join(calls)}" * bool(calls)
        of = f"is of call {manifest.record.call}{results}; give one of these, or" * bool(manifest.record.call)
        raise UsageError(f"--call {call}: {shown} {of or 'does not say its call;'} leave out --call")
    data = read.result(checkpoint.store, checkpoint.name, entry)
    try:
        result, places = _opened(data)
    except (ValueError, StateError) as error:
        raise Damaged(checkpoint.name, f"{RESULTS}/{entry.file.name}: {error}") from error
    if not result.head.has_state:
        raise UsageError(f"--call {call}: that call of {shown} had no State, so there is nothing to export")
    # A result has none of its own. The State of a job's calls is mostly the same one.
    return _Content(bytes(result.tree), places, lambda: result.data, _descriptions(checkpoint))


def _descriptions(checkpoint: Checkpoint) -> dict[str, Description]:
    """Return those of the lowest rank that has a part of its own: names in them may differ between ranks."""
    rank = min((file.number for file in checkpoint.manifest.files if file.kind == LOCAL), default=0)
    own = checkpoint.local(rank)
    if own is None:
        return {}
    try:
        about = plain(trees.decode_value(own), _no_tensor).get(descriptions.KEY, {})
        return {name: descriptions.decode(data) for name, data in about.items()}
    except (ValueError, TypeError, AttributeError, StateError) as error:
        raise Damaged(checkpoint.name, f"the own part of rank {rank}: {error}") from error


def _no_tensor(index: int, kind: str) -> Any:
    raise ValueError("it holds a tensor")


def _opened(data: bytearray) -> tuple[Result, Sequence[TensorPlace]]:
    """Return a result, and the places of its tensors. Raises ``ValueError`` and :class:`StateError`."""
    result = result_file.decode(data)
    if not result.head.has_state:
        return result, ()
    places = tensor_places.decode(bytes(result.layout))
    if (places.loose, places.length) != (result.head.loose, result.head.data):
        raise ValueError("its layout does not match its bytes")
    trees.check(bytes(result.tree))
    return result, places.all


def _named(parts: Mapping[str, str], tensor: TensorAt) -> dict[str, Any]:
    """Return the content of the State by name: state dicts and plain values."""
    content = {name: plain(text, tensor) for name, text in parts.items()}
    for name, value in content.items():
        if isinstance(value, dict) and value.keys() == {"state_dict", "names"}:
            content[name] = value["state_dict"]  # an optimizer: its names only serve to find parameters again
    values = content.pop(trees.VALUES, {})
    if not isinstance(values, dict):
        return content
    return content | {name: value for name, value in values.items() if name != trees.CLASSES}


def _write_folder(content: _Content, draft: Path, to: Path) -> int:
    import torch

    files = plain(trees.decode(content.tree)[FILES], _Tensors(content).at)
    if not isinstance(files, dict) or not all(isinstance(data, torch.Tensor) for data in files.values()):
        raise Permanent(f"{to}: the checkpoint has something in place of a file; nothing was exported")
    try:
        draft.mkdir()
        put(draft, {name: data.numpy() for name, data in files.items()}, durable=True)
        draft.rename(to)
    except (OSError, ValueError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        why = (isinstance(error, OSError) and error.strerror) or error
        raise Permanent(f"{to}: {why}; nothing was exported") from error
    return len(files)


class _Tensors:
    """Tensors of a State by number, each with memory of its own. The same number gives the same tensor."""

    def __init__(self, content: _Content) -> None:
        self.taken: dict[int, Tensor] = {}
        self._places = content.places
        self._commit = content.commit()

    def at(self, index: int, kind: str) -> Any:
        import torch

        if not 0 <= index < len(self._places):
            raise Permanent(f"the checkpoint's tree names tensor {index} of {len(self._places)}")
        if index not in self.taken:
            place = self._places[index]
            dtype = getattr(torch, place.dtype)
            if place.length == 0:
                self.taken[index] = torch.empty(place.shape, dtype=dtype)
            else:
                flat = torch.frombuffer(self._commit, dtype=torch.uint8, count=place.length, offset=place.offset)
                self.taken[index] = flat.clone().view(dtype).as_strided(place.shape, place.stride)
        return self.taken[index]


def _write_torch(value: dict[str, Any], _: Mapping[str, Description], path: Path) -> None:
    import torch

    try:
        with path.open("wb") as file:
            torch.save(value, file)
    except RuntimeError as error:  # torch raises this when the disk is full
        raise OSError(str(error)) from error


def _write_safetensors(value: dict[str, Any], known: Mapping[str, Description], path: Path) -> None:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError:
        raise UsageError("a .safetensors file needs the package safetensors; pip install safetensors") from None
    tensors: dict[str, Tensor] = {}
    names = {name: each.names for name, each in known.items()}
    rest = _without_tensors({name: _by_name(each, names.get(name, ())) for name, each in value.items()}, (), tensors)
    # Write a tensor with two names twice: the format cannot express that it is shared.
    apart = {name: tensor.clone(memory_format=_contiguous()) for name, tensor in tensors.items()}
    try:
        save_file(apart, path, metadata={"format": "pt", PLAIN: to_text(rest, default=repr, instead=repr)})
    except SafetensorError as error:
        raise OSError(str(error)) from error


def _contiguous() -> Any:
    import torch

    return torch.contiguous_format


def _by_name(value: Any, names: Sequence[str]) -> Any:
    """Return the contents of variables by their names instead of their places. Without the ``:0`` that TensorFlow adds.
    A name that several have gets the place, too."""
    kept = value["variables"] if isinstance(value, dict) and value.keys() == {"variables"} else value
    if not isinstance(kept, list) or len(kept) != len(names):
        return value
    shown = [name.removesuffix(":0") for name in names]
    times = Counter(shown)
    found: dict[str, Any] = {}
    for place, (name, tensor) in enumerate(zip(shown, kept, strict=True)):
        unique = name if times[name] == 1 else f"{name}.{place}"
        while unique in found:
            unique += "_"
        found[unique] = tensor
    return found


def _without_tensors(value: Any, way: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """Return ``value`` with each tensor replaced by its name, the path to it; adds the tensors to ``tensors``."""
    import torch

    if isinstance(value, torch.Tensor):
        name = ".".join(way) or "value"
        while name in tensors:
            name += "_"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {str(key): _without_tensors(inner, (*way, str(key)), tensors) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_without_tensors(inner, (*way, str(place)), tensors) for place, inner in enumerate(value)]
    return value


Writer = Callable[[dict[str, Any], Mapping[str, Description], Path], int | None]
"""Writes the content of a State to a file. Returns the number of its tensors that are in the file; None for all."""

_WRITERS: Final[Mapping[str, Writer]] = {
    ".pt": _write_torch,
    ".pth": _write_torch,
    ".safetensors": _write_safetensors,
}


def _writer(to: Path, model: str | None) -> Writer | None:
    if to.name.endswith(keras_files.ENDINGS):
        return partial(keras_files.write, given=model)
    if model is not None:
        raise UsageError(f"--model is for files of Keras; {to} is not one: give it the ending .keras or .weights.h5")
    return _WRITERS.get(to.suffix)
