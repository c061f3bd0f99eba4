"""The cause of a process's end, by its exit code and the other facts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.health.causes import BLAME, Cause, Evidence, ending, evidence

WARNED = "it ended by itself after check_alive() was False"


@pytest.mark.parametrize(
    ("code", "known", "cause", "text"),
    [
        (0, {"done": True}, Cause.DONE, "done"),
        (139, {"done": True}, Cause.DONE, "done, then killed by SIGSEGV"),
        (0, {}, Cause.LEFT, "left with exit code 0 before training was done"),
        (143, {}, Cause.LEFT, "left on a SIGTERM that this launcher did not send"),
        (-15, {}, Cause.LEFT, "left on a SIGTERM that this launcher did not send"),
        (0, {"told_to_leave": True}, Cause.TOLD, "told to leave"),
        (137, {"told_to_leave": True}, Cause.TOLD, "told to leave"),
        (137, {"departure": Cause.EVICTED}, Cause.EVICTED, "evicted: killed by SIGKILL"),
        (1, {"departure": Cause.PREEMPTED, "oom": True}, Cause.PREEMPTED, "preempted: exit code 1"),
        (137, {"oom": True}, Cause.MEMORY, "out of memory: killed by the kernel"),
        (-9, {"oom": True}, Cause.MEMORY, "out of memory: killed by the kernel"),
        (137, {}, Cause.CRASHED, "crashed: killed by SIGKILL"),
        (139, {"oom": True}, Cause.CRASHED, "crashed: killed by SIGSEGV"),
        (134, {"peer_lost": True}, Cause.PEER_LOST, "aborted by Horovod because a peer was lost"),
        (134, {}, Cause.CRASHED, "crashed: killed by SIGABRT"),
        (1, {"peer_lost": True}, Cause.CRASHED, "crashed: exit code 1"),
        (255, {"warned": True}, Cause.PREEMPTED, "preempted: " + WARNED),
        (255, {"warned": True, "told_to_leave": True}, Cause.PREEMPTED, "preempted: " + WARNED),
        (255, {"warned": True, "departure": Cause.DRAINED}, Cause.DRAINED, "drained: " + WARNED),
        (1, {"warned": True}, Cause.CRASHED, "crashed: exit code 1"),
        (255, {"warned": True, "done": True}, Cause.DONE, "done, then exit code 255"),
        (255, {}, Cause.UNREACHABLE, "unreachable: ssh failed or lost the connection"),
        (125, {}, Cause.CRASHED, "crashed: could not be started"),
        (3, {}, Cause.CRASHED, "crashed: exit code 3"),
        (128 + 40, {}, Cause.CRASHED, "crashed: killed by signal 40"),
    ],
)
def test_an_ending_is_told_by_all_that_is_known(code: int, known: dict[str, object], cause: Cause, text: str) -> None:
    assert ending(code, **known) == (cause, text)  # type: ignore[arg-type]


@given(st.integers(-64, 255), st.sampled_from([Cause.DRAINED, Cause.EVICTED, Cause.PREEMPTED]), st.booleans())
def test_whatever_ends_on_a_host_that_is_going_is_no_fault(code: int, departure: Cause, oom: bool) -> None:
    assert not ending(code, departure=departure, oom=oom).cause.fault


def test_every_cause_stands_in_the_table_with_its_reason() -> None:
    assert set(BLAME) == set(Cause)
    assert all(blame.points_at in ("none", "slot", "host") and blame.why for blame in BLAME.values())


@pytest.mark.parametrize(
    ("code", "cause", "known", "expected"),
    [
        (3, Cause.CRASHED, {}, Evidence.UNCLEAR),
        (255, Cause.UNREACHABLE, {}, Evidence.UNCLEAR),
        (1, Cause.CRASHED, {"error": True}, Evidence.OWN),
        (125, Cause.CRASHED, {}, Evidence.OWN),
        (139, Cause.CRASHED, {}, Evidence.OWN),
        (-11, Cause.CRASHED, {}, Evidence.OWN),
        (137, Cause.MEMORY, {}, Evidence.OWN),
        (137, Cause.SILENT, {"lost_peer": True}, Evidence.OWN),
        (1, Cause.CRASHED, {"lost_peer": True}, Evidence.LOST),
        (1, Cause.CRASHED, {"lost_peer": True, "error": True}, Evidence.LOST),
        (134, Cause.CRASHED, {}, Evidence.LOST),
        (-6, Cause.CRASHED, {}, Evidence.LOST),
    ],
)
def test_an_end_shows_whether_a_lost_peer_may_have_caused_it(
    code: int, cause: Cause, known: dict[str, bool], expected: Evidence
) -> None:
    assert evidence(code, cause, **{"error": False, "lost_peer": False, **known}) is expected
