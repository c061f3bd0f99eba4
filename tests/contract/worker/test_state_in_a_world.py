"""What a State promises between ranks: each judgement passes on ours and fails on the stock one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Saw = list[dict[str, Any]]


def same_everywhere(saw: Saw, *keys: str) -> None:
    for key in keys:
        assert [rank.get(key, "nothing") for rank in saw] == [saw[0].get(key)] * len(saw), key


def falls_back(saw: Saw) -> None:
    assert saw == [{"weight": 117.0, "batch": 117}] * 2


def consistent(saw: Saw) -> None:
    assert saw == [{"weight": 117.0, "batch": 117, "seen": ["uncommitted"]}] * 2


def same_training(saw: Saw) -> None:
    same_everywhere(saw, "weights", "optimizer", "weights after training")


def own_scheduler(saw: Saw) -> None:
    assert saw == [{"epoch": 2, "lr": 0.25}] * 2


def no_skip(saw: Saw) -> None:
    assert saw == [{"skip_sync": False}] * 2


def kept_notice(saw: Saw) -> None:
    assert saw == [{"first": True, "second": True, "third": False}] * 2


def every_notice(saw: Saw) -> None:
    assert saw == [{"seen": [True, True, True]}] * 2


def noticed(saw: Saw) -> None:
    assert saw == [{"seen": True}] * 2


def accumulated_twice(saw: Saw) -> None:
    assert saw == [{"passes": 2, "gradient": 2.0, "error": ""}] * 2


def same_tensors(saw: Saw) -> None:
    assert "raised" not in saw[0]
    same_everywhere(saw, "weights")


def no_stall(saw: Saw) -> None:
    assert [rank.get("entries") for rank in saw] == [2, 2]
    same_everywhere(saw, "optimizer")


JUDGEMENTS: dict[str, Callable[[Saw], None]] = {
    "newcomer_falls_back_to_what_was_synced": falls_back,
    "sync_sends_weights_with_their_own_counters": consistent,
    "newcomer_gets_the_weights_adamw": same_training,
    "newcomer_gets_the_weights_sgd": same_training,
    "newcomer_keeps_its_own_scheduler": own_scheduler,
    "removal_does_not_skip_the_sync": no_skip,
    "notice_during_the_new_worlds_forming_is_kept": kept_notice,
    "notices_of_one_second_are_two_notices": every_notice,
    "notice_to_another_rank_counts": noticed,
    "interrupted_accumulation_is_forgotten_everywhere": accumulated_twice,
    "any_kind_of_tensor_is_synced": same_tensors,
    "unused_parameters_do_not_stall": no_stall,
}


@pytest.mark.parametrize("name", JUDGEMENTS)
def test_our_state_keeps_it(name: str, ours: dict[str, Saw]) -> None:
    JUDGEMENTS[name](ours[name])


@pytest.mark.parametrize("name", JUDGEMENTS)
def test_the_stock_state_breaks_it(name: str, stock: dict[str, Saw]) -> None:
    with pytest.raises(AssertionError):
        JUDGEMENTS[name](stock[name])


def test_fingerprints_differ_before_and_agree_after_a_sync(ours: dict[str, Saw]) -> None:
    first, second = ours["fingerprints_agree_after_sync"]
    assert first["before"] != second["before"]
    assert first["after"] == second["after"] == first["before"]


def test_a_newcomer_counts_steps_and_commits_from_the_roots(ours: dict[str, Saw]) -> None:
    assert ours["steps_of_the_root_count_for_the_newcomer"] == [{"step": 4, "number": 2}] * 2


def test_ranks_with_different_models_are_told_which_tensor_differs(ours: dict[str, Saw]) -> None:
    raised = ours["different_models_are_named"][1]["raised"]
    assert raised.startswith("Permanent: state.model: 'weight' is 1x3 float32 here and 1x2 float32 on rank 0")
