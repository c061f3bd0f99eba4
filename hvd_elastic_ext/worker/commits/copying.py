"""Copies the tensors of a State to and from the bytes of a commit.

All copies of a commit are one batch, in which nothing is allocated: training waits for it. Between a CUDA device and
the host, copies run on a stream of their own, from and to pinned memory. torch takes about 4 µs to queue one of them;
in that time the bus moves 200 kB. So small tensors that are near each other in a commit go through staging memory on
the device: they are gathered there at the same distances, and copied in one piece.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from hvd_elastic_ext.checkpoint.format.tensor_places import ALIGNMENT
from hvd_elastic_ext.worker.commits import layout as layouts
from hvd_elastic_ext.worker.commits.layout import Layout, TensorPlace
from hvd_elastic_ext.worker.commits.memory import Side

log = logging.getLogger(__name__)


_HUGE: Final = 2 << 20
"""Bytes of a huge page, on x86-64 and most arm64."""
Streams = list[Any]
"""Streams on which copies are still under way."""


def copy_batch(targets: Sequence[Tensor], sources: Sequence[Tensor], *, later: Streams | None = None) -> None:
    """Copy each source into its target. All copies are done on return; with ``later``, when its streams have finished.

    Between the host and CUDA devices, copies run on a stream of their own and are queued without waiting. With pinned
    host memory (:func:`pin`) they use the full speed of the bus, and no further copy of the model on the device.
    """
    if not targets:
        return
    with torch.no_grad():
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch._foreach_copy_(list(targets), list(sources))
            return
        pairs = list(zip(targets, sources, strict=True))
        devices = {t.device for t in (*targets, *sources) if t.is_cuda}
        for device in devices:
            _copy_cuda([pair for pair in pairs if device in (pair[0].device, pair[1].device)], device, later)
        rest = [pair for pair in pairs if not (pair[0].is_cuda or pair[1].is_cuda)]
        if rest:
            torch._foreach_copy_([target for target, _ in rest], [source for _, source in rest])


def advise_huge(tensor: Tensor) -> Tensor:
    """Ask for huge pages under a large new tensor, and return it.

    The first write to hundreds of megabytes is then several times as fast. That matters when a newcomer creates
    its optimizer's state, because all other ranks wait for it.
    """
    start = -(-tensor.data_ptr() // _HUGE) * _HUGE
    length = (tensor.data_ptr() + tensor.nbytes - start) // _HUGE * _HUGE
    if tensor.device.type == "cpu" and length > 0:
        # This is only advice: a kernel without huge pages refuses it, without harm.
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)
    return tensor


def _copy_cuda(pairs: Sequence[tuple[Tensor, Tensor]], device: torch.device, later: Streams | None = None) -> None:
    with on_own_stream(device, later):
        for target, source in pairs:
            target.copy_(source, non_blocking=True)


@contextlib.contextmanager
def on_own_stream(device: torch.device, later: Streams | None = None) -> Iterator[None]:
    """Run the copies of the context after the pending work of the present stream, without waiting for other streams.
    They are done at its end. With ``later``, only the present stream waits, and their stream is added to ``later``.
    """
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    present = torch.cuda.current_stream(device)
    stream.wait_stream(present)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        # Also after an exception: a copy that is still under way must not write into a later commit.
        if later is None:
            stream.synchronize()
        else:
            later.append(stream)
            present.wait_stream(stream)


@contextlib.contextmanager
def awaited() -> Iterator[Streams]:
    """Give a list for ``later``; all copies are done at the end of the context, also after an exception."""
    later: Streams = []
    try:
        yield later
    finally:
        for stream in later:
            stream.synchronize()


def pin(side: Side, tensors: Sequence[Tensor]) -> None:
    """Pin a side's memory, once for each mapping, if any of ``tensors`` is on a CUDA device. This only saves time."""
    if side.pinned or not torch.cuda.is_initialized() or not any(tensor.is_cuda for tensor in tensors):  # type: ignore[no-untyped-call]
        return
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    mapping = side.bytes.untyped_storage()  # from its first byte: by it torch judges whether a tensor is pinned
    address = mapping.data_ptr()
    error = int(runtime.cudaHostRegister(address, mapping.nbytes(), 0))
    if error:
        _forget_error()
        log.warning("commit memory is not pinned, commits will be slower: CUDA error %d", error)
    # After an error there is nothing to undo, and no second attempt.
    side.pin(_nothing if error else partial(_unpin, runtime, address))


def _unpin(runtime: Any, address: int) -> None:
    if int(runtime.cudaHostUnregister(address)):
        _forget_error()


def _nothing() -> None:
    pass


def _forget_error() -> None:
    """Clear CUDA's last error, which would otherwise be attributed to the next kernel of the training."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")  # after this kernel, torch reads and clears the last error


# --- small tensors of a device


SMALL: Final = 64 << 10
"""Bytes of the largest tensor that is staged."""
MAX_STAGING_BYTES: Final = 64 << 20
"""Bytes of staging memory on a device. Tensors beyond it are copied one by one."""
NEAR: Final = 4 << 10
"""Most bytes between two tensors of one piece. They belong to tensors on the host, such as the step of an optimizer."""
PIECE: Final = 4 << 20
"""Bytes of the longest piece."""
FEWEST: Final = 4
"""Fewest tensors of a piece; with fewer there is no gain."""
PLAIN: Final = frozenset({
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
})  # fmt: skip
"""The types for which torch copies many tensors of a device in one call."""
BITS: Final = {torch.float16: torch.int16, torch.bfloat16: torch.int16}
"""The type as which tensors of these types are copied: in their own type, torch would change the bits of a NaN."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tensors that are copied together."""

    numbers: tuple[int, ...]
    """The tensors, ascending."""
    there: int
    """Their first byte in the commit."""
    here: int
    """Their first byte in staging memory."""
    length: int
    """Bytes, with those between the tensors."""


def pieces(layout: Layout, devices: Sequence[torch.device | None]) -> dict[torch.device, list[Piece]]:
    """Return the pieces of staged tensors for each device. ``devices`` has None for a tensor on the host.

    A piece also covers the bytes between its tensors, so these must be written after it.
    """
    places, used = layout.places, Counter[torch.device]()
    pieces_of: dict[torch.device, list[Piece]] = defaultdict(list)
    for bunch in _bunches(layout, devices):
        device, first, last = devices[bunch[0]], places[bunch[0]], places[bunch[-1]]
        length = last.offset + last.length - first.offset
        if device is not None and len(bunch) >= FEWEST and used[device] + length <= MAX_STAGING_BYTES:
            pieces_of[device].append(Piece(tuple(bunch), first.offset, used[device], length))
            used[device] += -(-length // ALIGNMENT) * ALIGNMENT
    return dict(pieces_of)


def _bunches(layout: Layout, devices: Sequence[torch.device | None]) -> list[list[int]]:
    places, bunches = layout.places, list[list[int]]()
    small = [
        number
        for number, place in enumerate(places)
        if devices[number] is not None and 0 < place.length <= SMALL and place.dtype in PLAIN
    ]
    for number in sorted(small, key=lambda number: places[number].offset):
        if bunches:
            first, last, place = bunches[-1][0], bunches[-1][-1], places[number]
            if (
                (devices[last], layout.firm[last]) == (devices[number], layout.firm[number])
                and place.offset - places[last].offset - places[last].length <= NEAR
                and place.offset + place.length - places[first].offset <= PIECE
            ):
                bunches[-1].append(number)
                continue
        bunches.append([number])
    return bunches


class Staging:
    """Staging memory on one device for the tensors of some pieces, with a view for each tensor."""

    def __init__(self, layout: Layout, found: Sequence[Piece], device: torch.device) -> None:
        self._device = device
        self._pieces = found
        views: list[tuple[int, TensorPlace]] = [
            (number, replace(place, offset=place.offset - piece.there + piece.here))
            for piece in found
            for number in piece.numbers
            for place in (layout.places[number],)
        ]
        self._by_dtype: dict[torch.dtype, tuple[list[int], list[Tensor]]] = defaultdict(lambda: ([], []))
        with torch.inference_mode(False):
            # Zeros, because the gaps between the tensors of a commit are zero.
            self._memory = torch.zeros(found[-1].here + found[-1].length, dtype=torch.uint8, device=device)
            for number, place in sorted(views, key=lambda row: row[0]):
                numbers, tensors = self._by_dtype[place.dtype]
                numbers.append(number)
                tensors += _as_bits(place.dtype, [place.view(self._memory)])
        self.numbers: frozenset[int] = frozenset(number for number, _ in views)

    def gather(self, tensors: Sequence[Tensor], data: Tensor) -> None:
        """Copy the staged ones of ``tensors``, which are all of the layout, into ``data``, the bytes of a side.

        This sets the bytes between them to zero.
        """
        with torch.no_grad(), on_own_stream(self._device):
            for dtype, (numbers, views) in self._by_dtype.items():
                torch._foreach_copy_(views, _as_bits(dtype, [tensors[number] for number in numbers]))
            for here, there in self._both(data, self._pieces):
                there.copy_(here, non_blocking=True)

    def scatter(self, data: Tensor, tensors: Sequence[Tensor], first: int, *, later: Streams | None = None) -> None:
        """Copy from ``data`` into those of ``tensors`` that are staged; they have the numbers from ``first`` on.

        ``later``: as for :func:`copy_batch`.
        """
        end = first + len(tensors)
        touched = [piece for piece in self._pieces if piece.numbers[0] < end and piece.numbers[-1] >= first]
        with torch.no_grad(), on_own_stream(self._device, later):
            for here, there in self._both(data, touched):
                here.copy_(there, non_blocking=True)
            for dtype, (numbers, views) in self._by_dtype.items():
                some = slice(bisect_left(numbers, first), bisect_left(numbers, end))
                if numbers[some]:
                    live = _as_bits(dtype, [tensors[number - first] for number in numbers[some]])
                    torch._foreach_copy_(live, views[some])

    def _both(self, data: Tensor, found: Sequence[Piece]) -> Iterator[tuple[Tensor, Tensor]]:
        for piece in found:
            yield (
                self._memory[piece.here : piece.here + piece.length],
                data[piece.there : piece.there + piece.length],
            )


def _as_bits(dtype: torch.dtype, tensors: list[Tensor]) -> list[Tensor]:
    bits = BITS.get(dtype)
    return tensors if bits is None else [tensor.view(bits) for tensor in tensors]


def stagings(layout: Layout, tensors: Sequence[Tensor]) -> list[Staging]:
    """Return staging memory for tensors like these; empty if there is no gain, or if a device has no memory for it."""
    pieces_of: Mapping[torch.device, Sequence[Piece]] = pieces(
        layout, [t.device if t.is_cuda else None for t in tensors]
    )
    try:
        return [Staging(layout, some, device) for device, some in pieces_of.items()]
    except torch.cuda.OutOfMemoryError:
        log.warning("no memory on the device to gather small tensors in: commits will be slower")
        return []


# --- all tensors of one layout


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
