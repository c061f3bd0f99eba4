"""The workers of one torchrun round agree on a token, whatever earlier rounds left in the store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.worker.comms.torch_distributed import agree_on_token


def round_of(store, size):
    with ThreadPoolExecutor(size) as pool:
        return list(
            pool.map(
                lambda rank: agree_on_token(store, rank, size, timeout_s=20, clock=SystemClock()),
                reversed(range(size)),
            )
        )


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_ranks_agree_on_a_token_that_is_new_in_each_round(size):
    store = HashStore()
    rounds = [round_of(store, size) for _ in range(4)]
    assert all(len(set(tokens)) == 1 for tokens in rounds)
    assert len({tokens[0] for tokens in rounds}) == 4


def test_entries_of_ended_workers_do_not_count():
    store = HashStore()
    for rank in range(1, 4):
        store.set(f"here/{rank}", f"gone{rank}")
        store.set(f"world/gone{rank}", "gone")
        store.set(f"met/gone/{rank}", "")
    assert len({*round_of(store, 4)} - {"gone"}) == 1


def test_missing_ranks_are_named():
    with pytest.raises(TimeoutError, match=r"ranks \[1, 2\] of 3"):
        agree_on_token(HashStore(), 0, 3, timeout_s=0.05, clock=SystemClock())


def test_a_rank_without_an_answer_times_out():
    with pytest.raises(RuntimeError, match=r"(?i)time"):
        agree_on_token(HashStore(), 1, 2, timeout_s=0.05, clock=SystemClock())
