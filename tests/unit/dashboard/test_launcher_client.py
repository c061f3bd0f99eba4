"""What the page may ask of a launcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.dashboard.launcher_client import LauncherClient, checked
from tests.support.clock import ManualClock


def test_a_block_and_a_clear_are_what_hosts_sends() -> None:
    block = checked({"do": "block", "host": "a", "for": 60, "reason": "fan", "more": 1})
    assert block == {"do": "block", "host": "a", "for": 60, "reason": "fan"}
    assert checked({"do": "block", "host": "a"})["reason"] == "by the dashboard"
    assert checked({"do": "clear", "host": "a", "reason": "x"}) == {"do": "clear", "host": "a"}


@pytest.mark.parametrize(
    "request_",
    [{}, {"do": "scale"}, {"do": "status"}, {"do": "block"}, {"do": "block", "host": "a b"}, {"do": "clear", "host": 1},
     {"do": "block", "host": "a", "for": True}, {"do": "block", "host": "a", "for": 0},
     {"do": "block", "host": "a", "reason": "x" * 300}, {"do": "block", "host": "a", "reason": "two\nlines"}],
)  # fmt: skip
def test_anything_else_is_refused(request_: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        checked(request_)


def test_a_job_without_a_launcher_says_nothing(tmp_path: Path) -> None:
    assert LauncherClient(tmp_path).ask() is None
    assert LauncherClient(None).ask() is None
    with pytest.raises(UsageError, match="folder is not known"):
        LauncherClient(None).act({"do": "clear", "host": "a"})


def test_one_answer_that_a_busy_machine_delays_makes_no_long_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, answers = ManualClock(), iter([0.002, 0.3, 0.002, 0.002])

    def asked(_: Path) -> dict[str, str]:
        clock.advance(next(answers))
        return {"said": f"at {clock.mono():.1f}"}

    monkeypatch.setattr("hvd_elastic_ext.dashboard.launcher_client.time.monotonic", clock.mono)
    launcher = LauncherClient(tmp_path)
    monkeypatch.setattr(launcher, "_asked", asked)
    first = launcher.ask()
    clock.advance(0.9)
    assert launcher.ask() is first
    for _ in range(3):
        clock.advance(1.1)
        before = launcher.ask()
        clock.advance(0.1)
        assert launcher.ask() is before
    assert next(answers, None) is None, "each second one, also after the one that took 0.3 s"
