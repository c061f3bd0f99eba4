"""A key space of its own for each world that torchrun forms.

torchrun (seen with torch 2.13, two agents) keeps one key-value store over all its
rounds and separates nothing in it, so that a restarted worker finds the addresses of
the round before and connects to processes that are gone. Variables do not tell rounds
apart either: each agent counts its own restarts. So the workers of a round find one
another by names that nobody used before: rank 0 draws a token for the world and hands
it to whoever says that it is there *now*.

What this cannot mend: when another node becomes rank 0, the same torch tells some
workers the old store and some the new one. ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``
in the agents' environment gives each round a store of its own, and none of this is needed.
"""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta
from typing import Final

from torch.distributed import Store  # type: ignore[attr-defined]

from hvd_elastic_ext.core.clock import Clock

PAUSE_S: Final = 0.01


def agree_on_token(store: Store, rank: int, size: int, *, patience_s: float, clock: Clock) -> str:
    """Return the token that all ranks of this round, and no other, agree on.

    Raises ``TimeoutError`` or torch's own error if they are not there after ``patience_s`` seconds.
    """
    if rank == 0:
        return _invite(store, size, patience_s=patience_s, clock=clock)
    return _come(store, rank, patience_s=patience_s)


def _come(store: Store, rank: int, *, patience_s: float) -> str:
    """Say that this process is there; only an answer to this very process counts."""
    mine = uuid.uuid4().hex
    store.set(f"here/{rank}", mine)
    store.wait([f"world/{mine}"], timedelta(seconds=patience_s))
    token = store.get(f"world/{mine}").decode()
    store.delete_key(f"world/{mine}")
    store.set(f"met/{token}/{rank}", "")
    return token


def _invite(store: Store, size: int, *, patience_s: float, clock: Clock) -> str:
    """Answer every rank until each has come. What stands under ``here`` may be of a process that is gone."""
    token, deadline = uuid.uuid4().hex, clock.mono() + patience_s
    missing, answered = set(range(1, size)), set[str]()
    while missing:
        for rank in sorted(missing):
            if store.check([f"met/{token}/{rank}"]):
                missing.remove(rank)
                store.delete_key(f"met/{token}/{rank}")
            elif store.check([f"here/{rank}"]) and (who := store.get(f"here/{rank}").decode()) not in answered:
                answered.add(who)
                store.set(f"world/{who}", token)
        if missing and clock.mono() > deadline:
            raise TimeoutError(f"ranks {sorted(missing)} of {size} did not come within {patience_s:g} s")
        clock.wait(threading.Event(), PAUSE_S)
    return token
