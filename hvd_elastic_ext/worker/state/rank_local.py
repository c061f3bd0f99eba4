"""The part of a commit that stays on its rank: the program that took it, and the random generators."""

from __future__ import annotations

from typing import Any, NamedTuple

from hvd_elastic_ext.checkpoint.values import read as reading
from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.checkpoint.values import write as writing
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.commits.buffer import Commit
from hvd_elastic_ext.worker.parts import rng


class RankLocal(NamedTuple):
    """``program`` distinguishes programs that may find each other's commits; ``states`` is None without generators."""

    program: str
    states: dict[str, Any] | None


def write(program: str, *, keep_rng: bool) -> bytes:
    """Return this rank's own part of a commit that is taken now."""
    states = rng.capture() if keep_rng else None
    return trees.encode_value(writing.write({"program": program, "rng": states}, []))


def read(commit: Commit) -> RankLocal:
    """Read the result of :func:`write`; empty if the commit was handed over to a slot without a part of its own."""
    if not commit.local:
        return RankLocal("", None)
    try:
        own = reading.read(trees.decode_value(commit.local), _no_tensor)
        return RankLocal(own["program"], own["rng"])
    except (ValueError, TypeError, LookupError) as error:
        raise StateError(f"a rank's own part of a commit cannot be read: {error!r}") from error


def _no_tensor(index: int, kind: str) -> Any:
    raise ValueError("it holds a tensor")
