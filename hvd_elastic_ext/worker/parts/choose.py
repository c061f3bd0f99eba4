"""Finds the part that keeps a value.

A new kind of value, such as a model of another framework, takes a module beside this one (its parts, and a
``part_for``), its entry in :data:`FRAMEWORKS`, and a case in ``tests/contract/parts/cases.py``. The module must not
import its framework before a value of it is seen: a script of another one would wait for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hvd_elastic_ext.worker import stock
from hvd_elastic_ext.worker.parts import Part, averaged, keras_torch, tensorflow_parts, torch_parts
from hvd_elastic_ext.worker.parts.torch_parts import ParameterNames
from hvd_elastic_ext.worker.parts.user_parts import HandlerPart

FRAMEWORKS: Final[tuple[Callable[[object, ParameterNames], Part | None], ...]] = (
    averaged.part_for,
    keras_torch.part_for,
    tensorflow_parts.part_for,
    torch_parts.part_for,
)
"""They are asked in this order. torch's comes last, because it takes every object that has a ``state_dict``."""


def part_for(value: object, names: ParameterNames) -> Part | None:
    """Return the part for a value; None for a plain value.

    The user's handlers for Horovod go first. Our parts replace Horovod's own three. Raises :class:`StateError` for a
    value that cannot be kept.
    """
    for kind, handler in stock.registered_handlers():
        if handler not in stock.HANDLERS and isinstance(value, kind):
            return HandlerPart(handler(value))
    return part_of_ours(value, names)


def part_of_ours(value: object, names: ParameterNames) -> Part | None:
    """The same without the user's handlers."""
    return next((part for choose in FRAMEWORKS if (part := choose(value, names)) is not None), None)


def part_behind(handler: Any, names: ParameterNames) -> Part:
    """Return our part for the value of one of Horovod's handlers; a user's own handler stays."""
    ours = part_of_ours(handler.value, names) if type(handler) in stock.HANDLERS else None
    return ours or HandlerPart(handler)
