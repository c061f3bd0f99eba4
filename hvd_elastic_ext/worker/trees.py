"""State dicts as trees."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hvd_elastic_ext.worker.commits import manifest
from hvd_elastic_ext.worker.commits.copying import advise_huge

Pairs = list[tuple[Tensor, Tensor]]
"""Copies still to be made: target, source."""


def _like(pattern: Tensor) -> Tensor:
    return advise_huge(torch.empty_like(pattern))


def settle(tree: Any, own: Any, pairs: Pairs, *, new: Callable[[Tensor], Tensor] = _like) -> Any:
    """Return ``tree`` with tensors of ``own`` in place of its own ones, where they fit, and else ``new`` ones.

    The new tree shares no memory with ``tree``; what has to be copied is appended
    to ``pairs``. Dicts, lists and tuples are entered; anything else is copied through and through.
    """
    if isinstance(tree, Tensor):
        target = own if fits(own, tree) else new(tree)
        pairs.append((target, tree))
        return target
    if type(tree) is dict:
        known = own if isinstance(own, dict) else {}
        return {key: settle(value, known.get(key), pairs, new=new) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        beside = own if type(own) is type(tree) and len(own) == len(tree) else [None] * len(tree)
        settled = [settle(value, other, pairs, new=new) for value, other in zip(tree, beside, strict=True)]
        if type(tree) is list:
            return settled
        # Kept where it can be: one tuple in two places is written once, and equal state is to be equal bytes.
        return tree if all(map(operator.is_, settled, tree)) else tuple(settled)
    return manifest.copied(tree)


def fits(live: object, committed: Tensor) -> bool:
    """True if ``live`` can take the contents of ``committed`` in place and be what it was."""
    return (
        isinstance(live, Tensor)
        and live.layout == torch.strided
        and live.dtype == committed.dtype
        and live.shape == committed.shape
        and (live.is_contiguous() == committed.is_contiguous())
    )
