"""What of a commit is its rank's own, and is sent to nobody: which program took it, and its random generators."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.worker.commits import tree_codec
from hvd_elastic_ext.worker.commits.buffer import Commit
from hvd_elastic_ext.worker.parts import rng


class Own(NamedTuple):
    """``program`` tells those apart that may find each other's commits; ``states`` is None without generators."""

    program: str
    states: dict[str, Any] | None


def write(program: str, *, keep_rng: bool) -> bytes:
    """This rank's own part of a commit that is taken now."""
    states = rng.capture() if keep_rng else None
    return tree_codec.write_one("rng", {"program": program, "rng": states}, [])


def read(commit: Commit) -> Own:
    """What :func:`write` wrote; nothing, if the commit was handed over to a slot that had no part of its own.

    Memory of this slot's own processes is trusted; what was on storage is not.
    """
    if not commit.local:
        return Own("", None)
    own = tree_codec.read(commit.local, _no_tensor, admitted=frozenset() if commit.record.stored else None)
    return Own(own["program"], own["rng"])


def _no_tensor(index: int, kind: str) -> Tensor:
    raise Permanent("the state of random generators holds no tensors")
