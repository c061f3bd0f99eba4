"""What is in a commit besides its tensors, as JSON that anybody can read; no code is in it, and none is run for it.

A commit's tree is written by the worker as pickled bytes, and those are no form
for a file that others may have touched. Here they become a graph of plain data
and back. Their operations are read as data: nothing they name is imported,
looked up or called, on either way. What comes back is for the worker's reader,
which finds plain names only, and those that the State admits.

The notation, one JSON object::

    {"graph": 1, "value": VALUE, "shared": [VALUE, ...]}

    null, true, 12, 0.5, "text"            as they are; numbers with . or e are floats
    {"int": "0x1f..."}                     an integer of more than 64 bits
    {"float": "nan"}                       also "inf", "-inf", or the 16 hex digits of another NaN
    {"str": base64}                        text with lone surrogates, as UTF-8 would have it
    {"bytes": base64}, {"bytearray": base64}
    [VALUE, ...]                           a list
    {"tuple": [...]}, {"set": [...]}, {"frozenset": [...]}
    {"weight": VALUE, ...}                 a dict, if every key is text and none is a word of this notation
    {"dict": {...}}                        one whose keys are text, and such words among them
    {"dict": [[KEY, VALUE], ...]}          any other
    {"tensor": 12}                         a tensor of the commit; "kind": parameter, frozen or leaf
    {"name": "torch:float32"}              something by its name
    {"call": "module:name", "args": [...]} what that makes
    {"new": "module:Class", "args": [...], "kwargs": {...}}    what the class makes without its __init__
    {"ref": 3}                             the value at place 3 of "shared": what is one thing in several places, what
                                           refers to itself, and what lies very deep

Something made may be filled afterwards, by "append" (a list), "items" (as in
"dict"), and "state", in this order; "setter" names what takes the state. Names
without a module are this format's own (:data:`OWN`): where their functions lie
may change, files do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_elastic_ext.checkpoint.graph import exported, from_pickle, notation, to_pickle

__all__ = ["from_json", "plain", "to_json"]


def to_json(tree: bytes) -> str:
    """Return a commit's tree (``tree`` or ``local`` of its record) as JSON text. Imports and calls nothing.

    Raises :class:`Permanent` for bytes that the worker's writer has not written, and for what no reader would take
    back: better no checkpoint than one that cannot be loaded.
    """
    return notation.written(from_pickle.read(tree))


def from_json(text: str) -> bytes:
    """Return the tree that ``text`` tells of, as bytes for the worker's restricted reader.

    They read to a value equal to the one that was written, with the same things shared. The same text always gives the
    same bytes, and :func:`to_json` of them gives the same bytes again. Raises :class:`Permanent` for any other text.
    """
    return to_pickle.written(notation.read(text))


def plain(text: str, tensor: Callable[[int, str], Any]) -> Any:
    """Return the value that ``text`` tells of, for people and other programs; ``tensor(index, kind)`` gives tensors.

    Made of plain containers, numbers, dates, paths, and NumPy's and torch's data types and arrays. Nothing is imported
    by a name in ``text``. What a type of the user's own made becomes a dict of its name and its content, as far as it
    is told: ``{"train:Best": {"loss": 0.5}}``, or ``{"train:Point": [1, 2]}`` if only arguments are, and
    ``{"train:Log": {"args": [...], "append": [...], "items": {...}, "state": ...}}`` if there is more. Names alone
    become the text ``"train:Best"``. As keys of a dict or in a set these are texts, too. Raises :class:`Permanent`.
    """
    return exported.built(notation.read(text), tensor, length=len(text))
