"""How the tensors of one layout are copied to and from the bytes of a commit."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hvd_elastic_ext.worker.commits import layout as layouts
from hvd_elastic_ext.worker.commits.copying import Streams, copy_batch
from hvd_elastic_ext.worker.commits.staging import stagings


class Plan:
    """The layout for ``tensors``, and their copies. It serves all tensors like these.

    Raises :class:`StateError` for a tensor that has no plain elements.
    """

    def __init__(self, tensors: Sequence[Tensor], firm: Sequence[bool]) -> None:
        self._key = layouts.key_of(tensors, firm)
        self.layout = layouts.plan(tensors, firm)
        self._stagings = stagings(self.layout, tensors)
        staged = frozenset[int]().union(*(staging.numbers for staging in self._stagings))
        self._alone = [number for number in range(len(tensors)) if number not in staged]

    def suits(self, tensors: Sequence[Tensor], firm: Sequence[bool]) -> bool:
        """Whether it serves these. It is asked for every commit."""
        return layouts.has_key(tensors, firm, self._key)

    def store(self, tensors: Sequence[Tensor], data: Tensor, views: Sequence[Tensor], *, later: Streams) -> None:
        """Copy ``tensors`` into ``data``, the bytes of a side; ``views`` are their places there.

        All is done once the streams that are added to ``later`` are.
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
        """Copy the other way into ``tensors``, which have the numbers from ``first`` on; False if they are not alike.

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
