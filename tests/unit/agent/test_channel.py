"""News that wait for a launcher."""

from __future__ import annotations

from hvd_elastic_ext.agent.channel import MAX_EVENT_BYTES, Backlog
from hvd_elastic_ext.agent.descriptors import FULL


def output(size: int) -> dict[str, object]:
    return {"event": "output", "text": "x" * size}


def test_with_a_launcher_nothing_is_dropped_and_too_much_is_said() -> None:
    backlog = Backlog()
    backlog.put(output(FULL), connected=True)
    assert not backlog.too_much_output
    backlog.put(output(1), connected=True)
    assert backlog.too_much_output
    first = backlog.pop()
    assert not backlog.too_much_output
    backlog.put_back(first)
    assert backlog.too_much_output
    assert backlog.dropped() == {}


def test_output_counts_by_its_bytes() -> None:
    backlog = Backlog()
    backlog.put({"event": "output", "text": "€" * (FULL // 3 + 1)}, connected=True)
    assert backlog.too_much_output


def test_even_news_do_not_fill_all_memory() -> None:
    backlog = Backlog()
    for _ in range(10):
        backlog.put({"event": "said", "message": "x" * (MAX_EVENT_BYTES // 4)}, connected=True)
    assert backlog.dropped() == {"output": 0, "news": 7}
