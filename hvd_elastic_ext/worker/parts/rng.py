"""The random generators of a rank. They are committed and rolled back, never synced.

With the same generator state on all ranks, dropout would drop the same units everywhere. So they are in the part of a
commit that stays on its rank, with the name of the program that took it.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch

from hvd_elastic_ext.checkpoint.format.descriptions import KEY
from hvd_elastic_ext.checkpoint.values import read as reading
from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.checkpoint.values import write as writing
from hvd_elastic_ext.core import recorded_steps
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.commits.buffer import Commit
from hvd_elastic_ext.worker.parts import tensorflow_rng


def capture() -> dict[str, Any]:
    """Return the states of the global generators of Python, NumPy (if it is loaded), torch and its CUDA devices, and
    TensorFlow (if there is one)."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state().numpy().tobytes()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]
    if (tensorflows := tensorflow_rng.global_state()) is not None:
        states["tensorflow"] = tensorflows
    return states


def restore(states: Mapping[str, Any]) -> None:
    """Restore every generator that ``states`` holds to the state of :func:`capture`."""
    if "python" in states:
        version, internal, gauss = states["python"]
        random.setstate((version, tuple(internal), gauss))
    if "torch" in states:
        torch.set_rng_state(_tensor(states["torch"]))
    if "numpy" in states:
        # A process that continues from an earlier one may not have imported numpy yet.
        importlib.import_module("numpy").random.set_state(states["numpy"])
    for index, state in enumerate(states.get("cuda", ())[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_tensor(state), index)
    tensorflow_rng.restore_global(states.get("tensorflow"))


@contextmanager
def untouched() -> Iterator[None]:
    """Restore every generator at the end of the context."""
    states = capture()
    try:
        yield
    finally:
        restore(states)


def seed_newcomer(lineage: int, generation: int, rank: int) -> int:
    """Seed every generator of a process that joins. Each rank gets another seed; a repeated job gets the same seeds.
    Return the seed."""
    digest = hashlib.blake2b(f"{lineage} {generation} {rank}".encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little")
    random.seed(seed)
    torch.manual_seed(seed)  # CUDA devices included
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    tensorflow_rng.seed_global(seed)
    return seed


def seed(number: int) -> None:
    """Seed every generator of :func:`capture`, except TensorFlow's, with a number of 64 bits. It takes some 20 µs."""
    random.seed(number)
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)  # else torch.manual_seed would note the whole stack, for later
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number & 0xFFFFFFFF)


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


# --- the part of a commit that stays on its rank


class RankLocal(NamedTuple):
    """The part of a commit that stays on its rank."""

    program: str
    """Distinguishes programs that may find each other's commits."""
    states: dict[str, Any] | None
    """The random generators; None if the State does not keep them."""
    steps: str | None = None
    """The notes of the steps that led to the commit; None without ``run --replay``."""


PARTS: Final = "parts"
"""In the states of a commit: those of generators within the parts of the State, by their names."""


def write_rank_local(
    program: str,
    *,
    keep_rng: bool,
    of_parts: Callable[[], Mapping[str, Any]] = dict,
    descriptions: Callable[[], dict[str, bytes]] = dict,
    steps: str | None = None,
) -> bytes:
    """Return this rank's own part of a commit that is taken now. ``of_parts``: returns the states of generators within
    parts of the State. ``descriptions``: returns what an export should know of parts. ``steps``: see
    :class:`RankLocal`."""
    states = capture() if keep_rng else None
    if states is not None and (within := of_parts()):
        states[PARTS] = within
    own: dict[str, Any] = {"program": program, "rng": states}
    if about := descriptions():
        own[KEY] = about
    if steps is not None:
        own[recorded_steps.KEY] = steps
    return trees.encode_value(writing.write(own, []))


def read_rank_local(commit: Commit) -> RankLocal:
    """Read the result of :func:`write_rank_local`; empty in a commit that was handed over to a slot without a part of
    its own."""
    if not commit.local:
        return RankLocal("", None)
    try:
        own = reading.read(trees.decode_value(commit.local), _no_tensor)
        return RankLocal(own["program"], own["rng"], own.get(recorded_steps.KEY))
    except (ValueError, TypeError, LookupError) as error:
        raise StateError(f"a rank's own part of a commit cannot be read: {error!r}") from error


def _no_tensor(index: int, kind: str) -> Any:
    raise ValueError("it holds a tensor")
