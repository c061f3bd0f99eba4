"""The messages of a job to a webhook, event after event."""

from __future__ import annotations

from hvd_elastic_ext.launcher.exports.webhook import Message, Notifier
from tests.support.clock import ManualClock


class Outlet:
    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, message: Message) -> None:
        self.sent.append(message.text)

    def close(self) -> None: ...


def test_a_crash_loop_is_told_where_strikes_are_counted_to_two_only() -> None:
    outlet = Outlet()
    notifier = Notifier(outlet, ManualClock())
    strike = {"subject": "slot 1 of h3", "reason": "crashed: exit code 1"}
    notifier.note("struck", {**strike, "again": None})
    notifier.note("struck", {**strike, "again": 2})
    notifier.note("struck", {"subject": "slot 0 of h3", "reason": "crashed", "again": 2})
    assert outlet.sent == []
    notifier.note("struck", {**strike, "again": 2})  # with a cooldown from 10 s to 20 s
    assert outlet.sent == ["slot 1 of h3 fails again and again: crashed: exit code 1"]
    notifier.note("struck", {**strike, "again": None})  # after a time without failures
    notifier.note("struck", {**strike, "again": 2})
    assert len(outlet.sent) == 1


def test_one_long_wait_is_told_once_a_period_and_is_no_further_one_at_each_look() -> None:
    clock, outlet = ManualClock(mono=0.0), Outlet()
    notifier = Notifier(outlet, clock)
    for _ in range(350):  # each 4 s
        clock.advance(4.0)
        notifier.waits("for hosts", clock.mono())
    assert outlet.sent == [f"waits for {seconds} s: for hosts" for seconds in (60, 660, 1260)]
