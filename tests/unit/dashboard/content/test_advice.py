"""What is to be done, for each kind of event."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hvd_elastic_ext.dashboard.content import advice, sentences
from hvd_elastic_ext.launcher.rules.health.causes import BLAME, Cause, ending
from hvd_elastic_ext.report.job_report import Row

DOCS = Path(__file__).parents[4] / "docs"
FAULTS = [cause for cause in Cause if BLAME[cause].points_at != "nobody"]


@pytest.mark.parametrize("cause", FAULTS)
def test_every_fault_of_a_process_or_a_host_has_a_remedy_that_names_the_host(cause: Cause) -> None:
    told = advice.advice(Row(1.0, "struck", cause.value, ("h3",), note=cause.with_words("so it was")))
    assert "h3" in told
    assert "{" not in told


def test_every_event_that_asks_for_a_look_has_a_remedy() -> None:
    names = {name for name, kind in sentences.KINDS.items() if kind == sentences.BAD} | sentences.TOLD
    assert [name for name in names if not advice.advice(_row(name))] == []


def _row(name: str) -> Row:
    return (
        Row(1.0, "resized", name, ("h3",), note="crashed: exit code 1")
        if name == "worker failed"
        else Row(1.0, name, "crashed: exit code 1", ("h3",))
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("crashed: exit code 1: ModuleNotFoundError: No module named 'numpy'", "Install on h3"),
        (ending(-9).text, "Find out who killed it: the kernel's log on h3"),
        (ending(-9, oom=True).text, "Give h3 more memory"),
        (ending(-11).text, "A library crashed"),
        ("crashed: exit code 1: OSError: [Errno 28] No space left on device", "Make room on h3"),
        ("unreachable: ssh: connect to host h3 port 22: Connection refused", "`hvd-elastic doctor --host h3`"),
        (ending(3).text, "Mend what the end of its output says"),
    ],
)
def test_the_words_of_an_end_choose_the_remedy(reason: str, words: str) -> None:
    assert words in advice.advice(Row(1.0, "exited", "crashed", ("h3",), note=reason))
    assert words in advice.of_end(Row(1.0, "finished", f"rank 1 on h3[0] {reason}; 1 of 2 processes ended well"), None)


def test_a_job_that_fails_for_no_fault_of_a_host_is_mended_by_its_reason() -> None:
    end = Row(1.0, "finished", "slots needed: 2, published: 1 (a) after 600 s, --elastic-timeout")
    assert advice.of_end(end, None) == advice.MEND


def test_the_host_of_a_seat_is_meant() -> None:
    assert "that process on h3 hangs" in advice.advice(Row(1.0, "stalled", "no progress for 9 s of rank 1", ("h3[0]",)))


def test_commands_and_options_that_a_remedy_names_are_there() -> None:
    remedies = [remedy for pairs in (advice.FAULTS, *advice.EVENTS.values()) for _, remedy in pairs]
    whole = " ".join([*remedies, advice.MEND, advice.NO_LAUNCHER])
    pages = " ".join(page.read_text() for page in DOCS.glob("*.md"))
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", whole)):
        assert option in pages, option
    for command in set(re.findall(r"hvd-elastic ([a-z]+(?: [a-z]+)?)", whole)):
        assert f"hvd-elastic {command}" in pages, command
