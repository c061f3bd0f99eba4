"""Whether a job without a world waits for blocked hosts, or ends at once because none can ever start."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.ledger import HealthLedger, Strike, Subject
from hvd_elastic_ext.launcher.membership.chosen_hosts import why_cannot_start

A, B = Host("a", 1), Host("b", 2)
UNKNOWN = "ssh: Could not resolve hostname a: Name or service not known"
DOWN = "ssh: Could not resolve hostname a: Temporary failure in name resolution"
NEVER = "no name server knows a, b, and no other host can come: correct the name in -H or in the hostfile"


def ledger(*said: str) -> HealthLedger:
    """The ledger in which ``a`` and ``b`` are blocked: not reachable, with these messages; "script": its script
    crashes."""
    found = HealthLedger()
    for host, words in zip((A, B), said, strict=False):
        cause, slot = (Cause.CRASHED, 0) if words == "script" else (Cause.UNREACHABLE, None)
        strike = Strike.of(cause, host, slot, at=100.0, detail=words)
        assert strike is not None
        found = found.struck(100.0, strike, (10.0, 300.0))
    return found


@pytest.mark.parametrize(
    ("detail", "fixed", "expected"),
    [
        (("no route to host", "no route to host"), True, None),
        ((DOWN, DOWN), True, None),
        ((UNKNOWN, "no route to host"), True, None),
        ((UNKNOWN, UNKNOWN), True, NEVER),
        ((UNKNOWN, UNKNOWN), False, None),  # the next list may have another host
        (("script", "no route to host"), True, ""),
        (("ssh: No such file or directory", "ssh: No such file or directory"), False, "install ssh on this machine"),
    ],
)
def test_only_hosts_that_cannot_be_reached_are_waited_for(
    detail: tuple[str, ...], fixed: bool, expected: str | None
) -> None:
    assert why_cannot_start(101.0, (A, B), ledger(*detail), fixed=fixed) == expected


def test_a_host_that_is_blocked_by_hand_may_be_cleared() -> None:
    blocked = ledger("no route to host").block(Subject("host", "b"), None, "")
    assert why_cannot_start(101.0, (A, B), blocked, fixed=True) is None
    assert why_cannot_start(101.0, (A, B), ledger("script").block(Subject("host", "b"), None, ""), fixed=True) == ""


@pytest.mark.parametrize(("cause", "expected"), [(Cause.SILENT, None), (Cause.CRASHED, "")])
@pytest.mark.parametrize("slots", [(0,), (0, 1)])
def test_a_host_whose_processes_were_silent_is_tried_again_after_its_cooldown(
    cause: Cause, expected: str | None, slots: tuple[int, ...]
) -> None:
    """Defect: the job ended with "gets no work for 10 s", although its processes were only slow on a busy machine."""
    found = HealthLedger()
    for slot in slots:
        strike = Strike.of(cause, A, slot, at=100.0, detail="no heartbeat")
        assert strike is not None
        found = found.struck(100.0, strike, (10.0, 300.0))
    assert why_cannot_start(101.0, (A,), found, fixed=True) == expected
