"""What an agent reports to a launcher."""

from __future__ import annotations

from hvd_elastic_ext.agent.job import _fitting
from hvd_elastic_ext.core.messages.wire import MAX_FIRST


def test_what_slots_hold_is_told_however_little_room_there_is() -> None:
    heartbeat = {"text": "x" * 2000}
    statuses: dict[str, dict[str, object]] = {
        str(slot): {"life": 1, "state": "rest", "code": 0, "parked": False, "beat": heartbeat, "held": [1, 2, 3, slot]}
        for slot in range(300)
    }
    fitting = _fitting(statuses)
    assert [status["held"] for status in fitting.values()] == [[1, 2, 3, slot] for slot in range(300)]
    assert len(str(fitting)) < MAX_FIRST
    assert all("beat" not in status for status in fitting.values())
