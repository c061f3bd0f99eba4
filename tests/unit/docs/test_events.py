"""The docs say of events what the catalogue says."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from hvd_elastic_ext.core.events import EVENTS, RESIZES
from hvd_elastic_ext.launcher.exports.webhook import SHORT_S, WAITS

DOCS = Path(__file__).parents[3] / "docs"


def table(page: str, heading: str) -> list[str]:
    """The rows of the first table below a heading."""
    lines = (DOCS / page).read_text(encoding="utf-8").partition(f"\n{heading}\n")[2].splitlines()
    below = itertools.dropwhile(lambda line: not line.startswith("|"), lines)
    return list(itertools.takewhile(lambda line: line.startswith("|"), below))[2:]


def rows(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [f"| `{name}` | {meaning} |" for name, meaning in pairs]


def test_the_glossary_has_every_event_with_its_meaning() -> None:
    meanings = ((kind.name, kind.meaning) for kind in EVENTS.values())
    assert table("glossary.md", "## Events of the journal") == rows(meanings)


def test_the_page_about_events_has_every_cause_of_a_resize_with_its_meaning() -> None:
    assert table("events.md", "### Events") == rows((kind.title, kind.meaning) for kind in RESIZES.values())


def test_the_page_about_events_names_those_that_have_no_row_and_those_with_another_name() -> None:
    part = (DOCS / "events.md").read_text(encoding="utf-8").partition("\n### Events\n")[2].partition("\n**Downtime")[0]
    without = re.search(r"These have no row of their own:\s(.*?)\.", part, re.DOTALL)
    assert without is not None
    assert re.findall(r"`(\w+)`", without[1]) == [kind.name for kind in EVENTS.values() if not kind.has_rows]
    for kind in EVENTS.values():
        if kind.shown_as:
            assert f"`{kind.name}` is shown as `{kind.title}`" in part


def test_the_page_about_metrics_has_every_topic_and_every_counter() -> None:
    messages = table("metrics.md", "## Messages")
    topics = {kind.notify.topic for kind in EVENTS.values() if kind.notify is not None}
    assert {row.split("`")[1] for row in messages} == {WAITS, *topics}
    assert f"for {SHORT_S:.0f} s |" in messages[0]
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    counters = [count for kind in EVENTS.values() for count in kind.counts]
    missing = [c.name for c in counters if f"`{c.name}_total{'{cause}' if c.by_cause else ''}`" not in page]
    assert missing == []
