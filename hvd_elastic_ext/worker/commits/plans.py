"""Copies the tensors of one layout to and from the bytes of a commit."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hvd_elastic_ext.worker.commits import layout as layouts
from hvd_elastic_ext.worker.commits.copying import Streams, copy_batch
from hvd_elastic_ext.worker.commits.staging import stagings


class Plan:
    """The layout for ``tensors``, and their copies. It is valid for all tensors of the same forms.

    Raises :class:`StateError` for a tensor that has no plain elements.
    """

    def __init__(self, tensors: Sequence[Tensor], firm: Sequence[bool]) -> None:
        self._key = layouts.key_of(tensors, firm)
        self.layout = layouts.plan(tensors, firm)
        self._stagings = stagings(self.layout, tensors)
        staged = frozenset[int]().union(*(staging.numbers for staging in self._stagings))
        self._alone = [number for number in range(len(tensors)) if number not in staged]

    def suits(self, tensors: Sequence[Tensor], firm: Sequence[bool]) -> bool:
        """Whether the plan is valid for these tensors. This is called for every commit."""
        return layouts.has_key(tensors, firm, self._key)

    def store(self, tensors: Sequence[Tensor], data: Tensor, views: Sequence[Tensor], *, later: Streams) -> None:
        """Copy ``tensors`` into ``data``, the bytes of a side; ``views`` are their places there.

        The copies are done when the streams that are added to ``later`` have finished.
        """
        if not self._stagings:
            return copy_batch(views, tensors, later=later)
        for staging in self._stagings:
            staging.gather(tensors, data)
        # Only after the pieces: they also cover places of these tensors.
        alone = self._alone
        return copy_batch([views[number] for number in alone], [tensors[number] for number in alone], later=later)

    def load(
        self, data: Tensor, views: Sequence[Tensor], tensors: Sequence[Tensor], first: int, *, later: Streams
    ) -> bool:
        """Copy from ``data`` into ``tensors``, which have the numbers from ``first`` on; False if their forms differ.

        No two of them may share memory. ``later``: as for :meth:`store`.
        """
        end = first + len(tensors)
        if not layouts.has_rows(tensors, self._key, first):
            return False
        if not self._stagings:
            copy_batch(tensors, views[first:end], later=later)
            return True
        for staging in self._stagings:
            staging.scatter(data, tensors, first, later=later)
        alone = [number for number in self._alone if first <= number < end]
        copy_batch([tensors[number - first] for number in alone], [views[number] for number in alone], later=later)
        return True
