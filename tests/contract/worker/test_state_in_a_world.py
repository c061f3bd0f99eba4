"""What a State promises between ranks: each judgement passes on ours and fails on the stock one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from tests.contract.worker.run_worlds import HOROVODS, KINDS, LIMIT_S, USERS, Saw

STALLS = {"unused_parameters_do_not_stall"}
"""Checks from which the stock State never returns; in all others it does, with something wrong."""

pytestmark = pytest.mark.timeout(LIMIT_S + 60)

Judgement = Callable[[Saw], None]


def same_everywhere(saw: Saw, *keys: str) -> None:
    for key in keys:
        assert [rank.get(key, "nothing") for rank in saw] == [saw[0].get(key)] * len(saw), key


def every_rank(**expected: Any) -> Judgement:
    """All ranks saw exactly this."""

    def judge(saw: Saw) -> None:
        assert saw == [expected] * len(saw)

    return judge


def same(*keys: str) -> Judgement:
    def judge(saw: Saw) -> None:
        assert "raised" not in saw[0]
        same_everywhere(saw, *keys)

    return judge


def all_take_the_last_ranks(saw: Saw) -> None:
    assert [rank["after"] for rank in saw] == [saw[-1]["before"]] * len(saw)
    assert saw[0]["before"] != saw[-1]["before"]


def all_take_rank_0s(saw: Saw) -> None:
    assert [rank["after"] for rank in saw] == [saw[0]["before"]] * len(saw)
    assert saw[0]["before"] != saw[1]["before"]


def the_last_ranks_but_their_own_numbers(saw: Saw) -> None:
    all_take_the_last_ranks(saw)
    assert [rank["rank"] for rank in saw] == list(range(len(saw)))


def back_to_what_was_synced(saw: Saw) -> None:
    same_everywhere(saw, "synced", "restored")
    assert saw[0]["synced"] == saw[0]["restored"]
    assert saw[0]["synced"]["batch"] == 3


def draws_of_their_own(saw: Saw) -> None:
    assert all(one["drawn"] != other["drawn"] for one, other in combinations(saw, 2))


def one_step_at_most_one_check_late(saw: Saw) -> None:
    """It came in step 3. A reduction knows it from the end of that step or the next; a check later it counts."""
    same_everywhere(saw, *saw[0])
    assert saw[0] == {"before the backward pass": 4, "before the step": 4, "after the step": 5}


def no_stall(saw: Saw) -> None:
    assert [rank.get("entries") for rank in saw] == [2] * len(saw)
    same_everywhere(saw, "optimizer")


BOTH: dict[str, Judgement] = {
    "notice_before_there_is_a_state_counts": every_rank(seen=True),
    "newcomer_falls_back_to_what_was_synced": every_rank(weight=117.0, batch=117),
    "sync_sends_weights_with_their_own_counters": every_rank(weight=117.0, batch=117, seen=["uncommitted"]),
    "newcomer_gets_the_weights_adamw": same("weights", "optimizer", "weights after training"),
    "newcomer_gets_schedulers": same("lr", "steps", "bad"),
    "the_interrupt_seals": every_rank(interrupted=True, kept=True),
    "what_a_reset_callback_changes_reaches_newcomers": every_rank(after=0.5, restored=0.5),
    "a_commit_sends_nothing": every_rank(broadcasts=0, sent=0),
    "notice_during_the_new_worlds_forming_is_kept": every_rank(first=True, second=True, third=False),
    "notices_of_one_second_are_two_notices": every_rank(seen=[True, True, True]),
    "notice_to_one_rank_ends_the_world_at_one_step": one_step_at_most_one_check_late,
    "no_interrupt_between_backward_passes": every_rank(told_after=[6]),
    "interrupted_accumulation_is_forgotten_everywhere": every_rank(passes=2, gradient=2.0, error=""),
    "any_kind_of_tensor_is_synced": same("weights"),
    "newcomer_gets_lbfgs": same("after", "trained"),
    "unused_parameters_do_not_stall": no_stall,
    **{f"falls_back_{kind}": back_to_what_was_synced for kind in KINDS},
    "what_a_users_sync_forgets_is_synced": back_to_what_was_synced,
}
ONLY_OURS: dict[str, Judgement] = {
    "equal_commits_are_not_sent": every_rank(first=0, second=0, batch=1),
    "rank_behind_by_one_commit_follows": all_take_rank_0s,
    "weights_loaded_on_one_rank_and_committed_by_all": all_take_rank_0s,
    "a_notice_that_comes_twice_is_one": every_rank(seen=[True, False, False, True]),
    # Else the other rank takes the end of the job for a lost peer, and waits for a world that never comes.
    "who_is_done_first_may_leave_at_once": every_rank(told="done", batch=3),
    "steps_of_the_root_count_for_the_newcomer": every_rank(step=4, number=1),
    "dataclasses_of_the_script_come_in": every_rank(best=0.25),
    "an_optimizer_steps_on_after_its_state": same("steps", "fingerprint"),
}


@pytest.mark.parametrize("name", [*BOTH, *ONLY_OURS])
def test_our_state_keeps_each_promise(name: str, ours: dict[str, Saw]) -> None:
    (BOTH | ONLY_OURS)[name](ours[name])


@pytest.mark.soak
@pytest.mark.parametrize("name", BOTH)
def test_the_stock_state_breaks_each_promise(name: str, stock: dict[str, Saw]) -> None:
    stalled = any(rank.get("raised") == "stalled" for rank in stock[name])
    assert stalled == (name in STALLS)
    with pytest.raises((AssertionError, KeyError)):
        BOTH[name](stock[name])


@pytest.mark.parametrize(
    "name",
    [
        "notice_to_one_rank_ends_the_world_at_one_step",
        "no_interrupt_between_backward_passes",
        "unused_parameters_do_not_stall",
    ],
)
@pytest.mark.soak
def test_our_state_keeps_it_among_three(name: str, three: dict[str, Saw]) -> None:
    BOTH[name](three[name])


@pytest.fixture(params=["ours", pytest.param("three", marks=pytest.mark.soak)])
def either(request: pytest.FixtureRequest) -> dict[str, Saw]:
    """Two ranks with our State, then three."""
    found: dict[str, Saw] = request.getfixturevalue(request.param)
    return found


def test_the_first_sync_always_sends(either: dict[str, Saw]) -> None:
    """Ranks start from different random weights, and all hold their commit number 0."""
    saw = either["first_sync_sends_though_all_hold_commit_0"]
    assert len({rank["before"] for rank in saw}) == len(saw)
    assert [rank["after"] for rank in saw] == [saw[0]["before"]] * len(saw)
    assert all(rank["sent"] > 0 for rank in saw)


def test_values_and_buffers_that_differ_are_sent_alone_and_made_equal(either: dict[str, Saw]) -> None:
    saw = either["values_and_buffers_that_differ_are_made_equal"]
    assert len({rank["before"] for rank in saw}) == len(saw)
    same_everywhere(saw, "after", "restored")
    assert saw[0]["after"] == saw[0]["restored"] == [saw[0]["before"], 0.0, [0]]
    assert all(0 < rank["sent"] < rank["all"] / 4 for rank in saw)


def test_ranks_that_committed_equally_often_but_after_unequal_steps_are_made_equal(ours: dict[str, Saw]) -> None:
    saw = ours["commits_of_one_number_after_unequal_steps"]
    assert [rank["before"][2] for rank in saw] == [2, 3]
    all_take_the_last_ranks(saw)


def test_ranks_that_differ_after_a_sync_are_found_when_asked_for(either: dict[str, Saw]) -> None:
    for rank in either["divergence_is_found_when_asked_for"]:
        assert rank["said"].startswith("StateError: ranks differ after a sync")


def test_a_notice_at_any_moment_ends_the_world_at_one_step(either: dict[str, Saw]) -> None:
    same_everywhere(either["notice_at_any_moment_ends_the_world_at_one_step"], "ended")


def test_ranks_draw_different_dropout_after_a_join(either: dict[str, Saw]) -> None:
    draws_of_their_own(either["dropout_differs_after_a_join"])


@pytest.mark.soak
def test_the_stock_state_lets_them_draw_the_same(stock: dict[str, Saw]) -> None:
    with pytest.raises(AssertionError):
        draws_of_their_own(stock["dropout_differs_after_a_join"])


@pytest.mark.parametrize(
    ("name", "groups"),
    [("newcomer_gets_a_group_that_was_added", [2, 2]), ("newcomer_loses_a_group_that_was_removed", [2])],
)
def test_a_newcomer_gets_the_parameter_groups(name: str, groups: list[int], ours: dict[str, Saw]) -> None:
    same("after", "trained")(ours[name])
    assert ours[name][1]["groups"] == groups


def test_who_is_ahead_waits_for_those_behind(ours: dict[str, Saw]) -> None:
    first, second = ours["who_is_ahead_waits_for_those_behind"]
    assert first["told"] == second["told"] == "interrupted"
    assert first["steps"] == second["steps"]


def test_what_is_under_way_is_dropped_with_its_world(ours: dict[str, Saw]) -> None:
    saw = ours["what_is_under_way_is_dropped_with_its_world"]
    same_everywhere(saw, "weight")
    assert [(rank["total"], rank["again"]) for rank in saw] == [(3.0, [False] * 3)] * 2


def test_a_users_sync_merges_what_it_says_each_rank_has(either: dict[str, Saw]) -> None:
    saw = either["a_users_sync_merges_what_each_rank_has"]
    once = sum(range(1, len(saw) + 1))
    assert [[total for total, _ in rank["seen"]] for rank in saw] == [[once, 2 * once]] + [[0, 0]] * (len(saw) - 1)
    samples = [f"sample {rank} of {step}" for rank in range(len(saw)) for step in range(2)]
    assert [rank["seen"][-1][1] for rank in saw] == [samples] * len(saw)


@pytest.mark.parametrize("loop", ["ours", "stock"])
@pytest.mark.parametrize("kind", ["own", "torch_state"])
def test_a_mixin_goes_through_a_new_world_under_both_loops(kind: str, loop: str, ours: dict[str, Saw]) -> None:
    saw = ours[f"{kind}_goes_on_under_the_{loop}_loop"]
    same_everywhere(saw, "weights", "optimizer", "history", "worlds")
    assert saw[0]["history"] == [1, 2, 3, 4, 5, 6]
    assert len(saw[0]["worlds"]) == 2


def test_fingerprints_differ_before_and_agree_after_a_sync(ours: dict[str, Saw]) -> None:
    first, second = ours["fingerprints_agree_after_sync"]
    assert first["before"] != second["before"]
    assert first["after"] == second["after"] == first["before"]


def test_a_class_that_only_another_rank_knows_is_refused_in_one_line(ours: dict[str, Saw]) -> None:
    raised = ours["a_class_that_only_the_root_has_is_refused"][1]["raised"]
    assert raised.startswith(
        "StateError: the State holds a 'tests.contract.worker.worlds.wire:Stranger', a class that "
    )
    assert raised.endswith("import the module, and define the class as in the script that wrote it")


def test_ranks_with_different_models_are_told_which_tensor_differs(ours: dict[str, Saw]) -> None:
    raised = ours["different_models_are_named"][1]["raised"]
    assert raised.startswith("StateError: state.model: 'weight' is 1x3 float32 here and 1x2 float32 in the commit")


def test_weights_that_one_rank_loaded_reach_the_others_though_all_sealed_a_commit(ours: dict[str, Saw]) -> None:
    first, second = ours["weights_loaded_on_one_rank_reach_the_others"]
    assert first == second
    assert (first["by load"], first["by data"]) == (42.0, 7.0)


def test_without_set_epoch_each_loop_of_two_ranks_consumes_each_sample_once_though_peers_are_lost(
    ours: dict[str, Saw],
) -> None:
    saw = ours["passes_without_set_epoch"]
    for number in range(3):
        assert sorted(index for rank in saw for index in rank["passes"][number]) == list(range(22))
    assert [len(rank["told"]) for rank in saw] == [1, 0]
    # Six batches a loop; of the second, one is lost and four more are needed; the first of the third is lost.
    assert [rank["steps"] for rank in saw] == [6 + 2 + 1 + 4 + 1 + 6] * 2


def test_global_batches_give_the_weights_of_one_process_after_every_step(ours: dict[str, Saw]) -> None:
    for saw in ours["global_batches_train_as_one_process"]:
        assert len(saw["together"]) == 3
        for shared, alone in zip(saw["together"], saw["alone"], strict=True):
            assert shared == pytest.approx(alone, rel=1e-9)


def test_ranks_share_the_counting_of_a_streams_shards(ours: dict[str, Saw]) -> None:
    saw = ours["ranks_share_the_counting_of_shards"]
    assert [rank["read"] for rank in saw] == [["3", "5"], ["4"]]
    assert [rank["lengths"] for rank in saw] == ["3 4 5"] * 2


# Cells of the table in docs/guarantees.md: the newest commit is the root


def test_our_state_follows_the_newest_commit(either: dict[str, Saw]) -> None:
    all_take_the_last_ranks(either["newest_commit_wins_though_it_is_not_rank_0s"])


@pytest.mark.parametrize("kind", HOROVODS)
def test_a_mixin_over_horovods_state_follows_the_newest_commit(kind: str, ours: dict[str, Saw]) -> None:
    the_last_ranks_but_their_own_numbers(ours[f"newest_{kind}"])


@pytest.mark.parametrize("kind", USERS)
def test_a_mixin_over_a_users_state_follows_the_newest_commit(kind: str, ours: dict[str, Saw]) -> None:
    the_last_ranks_but_their_own_numbers(ours[f"newest_{kind}"])


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["commit_wins_though_it_is_not_rank_0s", *USERS, *HOROVODS])
def test_an_unmodified_state_follows_rank_0(kind: str, stock: dict[str, Saw]) -> None:
    with pytest.raises(AssertionError):
        all_take_the_last_ranks(stock[f"newest_{kind}"])


# Each sample is consumed once


def exactly_once(saw: Saw) -> bool:
    return sorted(index for rank in saw for index in rank["consumed"]) == list(range(22))


def test_our_state_with_our_sampler_consumes_each_sample_once(ours: dict[str, Saw]) -> None:
    assert exactly_once(ours["samples_of_our_state"])


def test_a_mixin_over_horovods_state_with_our_sampler_consumes_each_sample_once(ours: dict[str, Saw]) -> None:
    assert exactly_once(ours["samples_of_a_mixin_over_torch_state"])


def test_a_mixin_over_a_users_state_with_our_sampler_consumes_each_sample_once(ours: dict[str, Saw]) -> None:
    assert exactly_once(ours["samples_of_a_mixin_over_a_users_state"])
