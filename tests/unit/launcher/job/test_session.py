"""The messages of agents after which the planners are asked again."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.launcher.job.session import changes_no_plan


@pytest.mark.parametrize(
    ("news", "quiet"),
    [
        ({"event": "beats", "slots": {}}, True),
        ({"event": "asked", "method": "GET", "path": "/global/1"}, True),
        ({"event": "asked", "method": "PUT", "path": "/global/1"}, True),
        ({"event": "asked", "method": "GET", "path": "/rank_and_size/a/0"}, False),
        ({"event": "unasked", "id": 3}, False),  # the question may have been for a rank
        ({"event": "exited", "code": 1}, False),
    ],
)
def test_heartbeats_and_questions_for_keys_cause_no_look(news: dict[str, Any], quiet: bool) -> None:
    assert changes_no_plan(news) is quiet
