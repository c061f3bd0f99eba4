"""``elastic.wrap`` on every library: equal on all ranks, and to one process with the whole batch."""

from __future__ import annotations

import pytest

from tests.contract.comms.conftest import RANKS

not_horovod = pytest.mark.parametrize("saw", ["torch", "mpi"], indirect=True)


def assert_equal_everywhere_and_to_one_process(pairs):
    assert len(pairs) == RANKS
    assert all(together == pairs[0][0] for together, _ in pairs), "ranks differ"
    assert pairs[0][0] == pytest.approx(pairs[0][1], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("check", ["wrapped_sgd", "wrapped_adamw", "wrapped_with_two_passes", "wrapped_with_clipping"])
def test_training_on_many_ranks_equals_training_on_one_with_the_whole_batch(saw, check):
    assert_equal_everywhere_and_to_one_process(saw[check])


@not_horovod
@pytest.mark.parametrize("check", ["wrapped_with_a_scheduler_made_first", "wrapped_lbfgs"])
def test_schedulers_made_before_and_steps_with_closures_average_too(saw, check):
    assert_equal_everywhere_and_to_one_process(saw[check])


def test_an_infinity_on_one_rank_makes_all_skip_the_step(saw):
    first = saw["wrapped_with_a_loss_scaler"][0]
    assert first[1] == 4.0
    assert all(abs(value) < 100 for value in first[0])
    assert all(rank == first for rank in saw["wrapped_with_a_loss_scaler"])


@not_horovod
def test_a_parameter_unused_on_some_ranks_counts_as_zero_there_and_one_unused_on_all_is_left_alone(saw):
    assert saw["what_is_unused_stays_untouched"] == [[rank != 1, False, True, True] for rank in range(RANKS)]


@not_horovod
def test_gradients_of_all_sizes_and_types_are_averaged_each_by_itself(saw):
    for rank in saw["small_and_large_gradients_of_several_types"]:
        assert rank == [[-(number * 3.0 + 3.0)] for number in range(18)]


@not_horovod
def test_sparse_gradients_are_refused_or_made_dense(saw):
    for message, weights in saw["sparse_gradients"]:
        assert "sparse_as_dense=True" in message
        assert weights == pytest.approx([-1, -1, -1, 0])


@not_horovod
def test_a_wrapped_optimizer_keeps_its_class_hooks_and_state_and_its_copies_are_plain(saw):
    assert saw["wrapped_is_a_real_optimizer"] == [[True, "AdamW", 1, True, True, 0.1]] * RANKS


def test_a_step_of_several_passes_is_under_way_from_the_first_to_the_step(saw):
    assert saw["accumulating_between_passes_only"] == [[False, True, True, False]] * RANKS
