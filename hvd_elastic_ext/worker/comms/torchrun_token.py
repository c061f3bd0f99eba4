"""A separate key space for each world that torchrun forms.

torchrun (torch 2.13, two agents) uses one key-value store for all rounds, so a restarted worker finds the addresses
of the round before. The variables do not identify a round either, because each agent counts its own restarts. So
rank 0 draws a token for each world, and gives it to every rank that announces itself *now*, under a new name.

This does not help when another node becomes rank 0: the same torch then gives some workers the old store and some
the new one. ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` in the agents' environment gives each round its own store, and
makes this module unnecessary.
"""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta
from typing import Final

from torch.distributed import Store  # type: ignore[attr-defined]

from hvd_elastic_ext.core.clock import Clock

PAUSE_S: Final = 0.01


def agree_on_token(store: Store, rank: int, size: int, *, timeout_s: float, clock: Clock) -> str:
    """Return the token on which exactly the ranks of this round agree.

    Raises ``TimeoutError`` or torch's own error if ranks are missing after ``timeout_s`` seconds.
    """
    if rank == 0:
        return _answer_all(store, size, timeout_s=timeout_s, clock=clock)
    return _announce(store, rank, timeout_s=timeout_s)


def _announce(store: Store, rank: int, *, timeout_s: float) -> str:
    """Announce this process under a new name, so that only an answer to this process counts."""
    mine = uuid.uuid4().hex
    store.set(f"here/{rank}", mine)
    store.wait([f"world/{mine}"], timedelta(seconds=timeout_s))
    token = store.get(f"world/{mine}").decode()
    store.delete_key(f"world/{mine}")
    store.set(f"met/{token}/{rank}", "")
    return token


def _answer_all(store: Store, size: int, *, timeout_s: float, clock: Clock) -> str:
    """Answer the ranks until all have the token. An entry under ``here`` may be from a process that has ended."""
    token, deadline = uuid.uuid4().hex, clock.mono() + timeout_s
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
            raise TimeoutError(f"ranks {sorted(missing)} of {size} did not come within {timeout_s:g} s")
        clock.wait(threading.Event(), PAUSE_S)
    return token
