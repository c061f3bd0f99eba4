"""Tensors for a newcomer's first sync, with allocated memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from hvd_elastic_ext.worker.commits.copying import advise_huge

_Kind = tuple[torch.dtype, torch.Size, tuple[int, ...]]


class Reserve:
    """New tensors by their kind. If there is none of a kind, one is made on request.

    While a newcomer creates its optimizer's state, all other ranks wait for it. The
    first writes to new memory take several times as long as the copies.
    """

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
