"""Whether a process that ended is started again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.agent.orders.restart_policy import ABORTED, RestartPolicy, decide

POLICY = RestartPolicy(codes=frozenset({ABORTED}), limit=4, within_s=100.0, pause_s=1.0, pause_max_s=5.0)


def test_by_default_nothing_is_restarted() -> None:
    pause, reason = decide(0.0, ABORTED, (), limits=RestartPolicy())
    assert pause is None
    assert reason == "exit code 134 is none to restart after"


def test_only_the_named_exit_codes_lead_to_a_restart() -> None:
    assert decide(0.0, ABORTED, (), limits=POLICY)[0] == 1.0
    for code in (0, 1, 137, 139):
        assert decide(0.0, code, (), limits=POLICY)[0] is None


def test_pauses_double_up_to_the_longest() -> None:
    history: tuple[float, ...] = ()
    pauses = []
    for _ in range(4):
        pause, _ = decide(10.0, ABORTED, history, limits=POLICY)
        pauses.append(pause)
        history += (10.0,)
    assert pauses == [1.0, 2.0, 4.0, 5.0]


def test_when_the_budget_is_spent_the_reason_says_so() -> None:
    pause, reason = decide(10.0, ABORTED, (1.0, 2.0, 3.0, 4.0), limits=POLICY)
    assert pause is None
    assert reason == "exit code 134, but it was restarted 4 times in 100 s already"


def test_restarts_long_ago_cost_no_budget_and_lengthen_no_pause() -> None:
    assert decide(200.0, ABORTED, (1.0, 2.0, 3.0, 100.0), limits=POLICY)[0] == 1.0


@given(
    st.integers(0, 5),
    st.floats(0, 100),
    st.floats(0, 100),
    st.floats(0.1, 1000),
    st.lists(st.floats(0, 5), max_size=40),
)
def test_never_are_there_more_restarts_in_the_time_than_allowed(
    limit: int, pause_s: float, pause_max_s: float, within_s: float, lives: list[float]
) -> None:
    policy = RestartPolicy({ABORTED}, limit, within_s, pause_s, pause_max_s)
    now, history = 0.0, ()
    for life in lives:
        now += life
        pause, _ = decide(now, ABORTED, history, limits=policy)
        if pause is None:
            break
        assert 0 <= pause <= pause_max_s
        now += pause
        history = (*history, now)
        assert sum(now - moment < within_s for moment in history) <= limit
