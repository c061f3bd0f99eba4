"""When the launcher assumes that its own link is lost."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.health.link_loss import is_isolated


@pytest.mark.parametrize(
    ("heard", "grace_s", "expected"),
    [
        ([100.0, 100.0], 60.0, False),
        ([89.0, 99.0], 60.0, False),  # one host sends messages, and could continue without the silent one
        ([89.9, 90.7], 60.0, True),  # the other host has not sent a heartbeat, either
        ([89.9], 60.0, True),
        ([20.0, 45.0], 60.0, True),
        ([20.0, 39.9], 60.0, False),  # too long: the hosts are lost
        ([89.0, 89.5], 0.0, False),
        ([], 60.0, False),
    ],
)
def test_a_launcher_is_alone_if_no_host_of_the_world_is_heard_and_not_for_ever(
    heard: list[float], grace_s: float, *, expected: bool
) -> None:
    assert is_isolated(100.0, heard, limit_s=10.0, grace_s=grace_s) is expected
