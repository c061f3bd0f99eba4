"""Trees with tensors: which live tensors take the committed contents, and which are new.

A roll-back copies into the live tensors where they fit, so that other code that holds them sees the committed state.
While a newcomer creates new ones, all other ranks wait for it, and the first writes to new memory take several times as
long as the copies: :class:`Reserve` has their memory ready.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final

import torch
from torch import Tensor

from hvd_elastic_ext.checkpoint.values.read import read
from hvd_elastic_ext.checkpoint.values.write import write
from hvd_elastic_ext.worker.commits.copying import advise_huge
from hvd_elastic_ext.worker.commits.layout import is_dense


class Pairs(list[tuple[Tensor, Tensor]]):
    """Pending copies, as pairs of target and source. No two of them write different contents to the same memory.

    Since the commit, live tensors may have begun to share memory with one another, or with ``others``, whose contents
    are restored already. Tensors that were separate in the commit get memory of their own again.
    """

    def __init__(self, others: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._settled: dict[int, tuple[Tensor, Tensor]] = {}
        self._contents = {other.data_ptr(): other for other in others if other.layout == torch.strided}

    def target(self, source: Tensor, own: object, new: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``own``, or else a ``new`` tensor, to which ``source`` is copied once all pairs are known.

        A tensor that was in two places of the tree is one tensor again.
        """
        settled = self._settled.get(id(source))
        if settled is not None:
            return settled[0]
        target = own if isinstance(own, Tensor) and fits(own, source) and self._may_take(own, source) else new(source)
        self._settled[id(source)] = target, source
        if target is not own and target.layout == torch.strided:
            self._contents.setdefault(target.data_ptr(), source)
        self.append((target, source))
        return target

    def _may_take(self, target: Tensor, source: Tensor) -> bool:
        """Whether the memory of ``target`` receives the contents of ``source`` and nothing else."""
        there = self._contents.setdefault(target.data_ptr(), source)
        return there is source or not target.numel() or _equal(there, source)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one.detach().cpu(), other.cpu())


def _like(pattern: Tensor) -> Tensor:
    return advise_huge(torch.empty_like(pattern))


def settle(tree: Any, own: Any, pairs: Pairs, *, new: Callable[[Tensor], Tensor] = _like) -> Any:
    """Return ``tree`` with the tensors of ``own`` in place of its own, where they fit, and with ``new`` ones elsewhere.

    The new tree shares no memory with ``tree``. Copies that are needed are added to ``pairs``. Dicts, lists and tuples
    are entered; anything else is deep-copied.
    """
    if isinstance(tree, Tensor):
        return pairs.target(tree, own, new)
    if type(tree) is dict:
        own_values = own if isinstance(own, dict) else {}
        return {key: settle(value, own_values.get(key), pairs, new=new) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        beside = own if type(own) is type(tree) and len(own) == len(tree) else [None] * len(tree)
        settled = [settle(value, other, pairs, new=new) for value, other in zip(tree, beside, strict=True)]
        return settled if type(tree) is list else tuple(settled)
    return copied(tree)


_layout: Final = attrgetter("layout")
_ATOMS: Final = frozenset({bool, int, float, str, bytes, type(None)})


def copied(value: Any) -> Any:
    """Return a copy that shares no memory with ``value``. (Of a view, ``copy.deepcopy`` would copy the whole base.)"""
    if type(value) in _ATOMS:
        return value
    tensors: list[Tensor] = []
    return read(write(value, tensors), lambda index, kind: tensors[index].detach().clone())


def fits(live: object, committed: Tensor) -> bool:
    """Whether a copy of ``committed`` into ``live``, in place, restores it."""
    return (
        isinstance(live, Tensor)
        and live.layout == torch.strided
        and live.dtype == committed.dtype
        and live.shape == committed.shape
        and (live.is_contiguous() == committed.is_contiguous())
    )


def may_be_overwritten(tensors: Iterable[Tensor]) -> bool:
    """Whether each tensor has memory of its own without holes, to which torch may write here. The same object may occur
    more than once."""
    distinct = list({id(tensor): tensor for tensor in tensors}.values())
    if not {torch.strided}.issuperset(map(_layout, distinct)) or any(map(Tensor.is_inference, distinct)):
        return False
    if not all(map(Tensor.is_contiguous, distinct)) and not all(map(is_dense, distinct)):
        return False
    addresses = list(filter(None, map(Tensor.data_ptr, distinct)))
    return len(set(addresses)) == len(addresses)


_Kind = tuple[torch.dtype, torch.Size, tuple[int, ...]]


class Reserve:
    """New tensors by their kind, made in advance. If there is none of a kind, one is made on request."""

    def __init__(self) -> None:
        self._free: dict[_Kind, list[Tensor]] = defaultdict(list)

    def stock(self, patterns: Iterable[Tensor]) -> list[Tensor]:
        """Make a tensor like each of those in host memory. Return the new tensors."""
        made = [advise_huge(torch.empty_like(pattern)) for pattern in patterns if pattern.device.type == "cpu"]
        for tensor in made:
            self._free[_kind(tensor)].append(tensor)
        return made

    def like(self, pattern: Tensor) -> Tensor:
        """Return a new tensor like ``pattern``, of undefined contents."""
        if (
            pattern.layout == torch.strided
            and pattern.device.type == "cpu"
            and (free := self._free.get(_kind(pattern)))
        ):
            return free.pop()
        return advise_huge(torch.empty_like(pattern))

    def drop(self) -> None:
        """Release the tensors that were not used."""
        self._free.clear()


def _kind(tensor: Tensor) -> _Kind:
    return tensor.dtype, tensor.shape, tensor.stride()
