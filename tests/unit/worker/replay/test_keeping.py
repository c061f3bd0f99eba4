"""When a State notes its steps, and when it does not."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.replay.recorder import Recorder
from hvd_elastic_ext.worker.state.keeper import WorkerSettings
from tests.unit.worker import alone_together
from tests.unit.worker.lockstep import LockstepComms, in_lockstep
from tests.unit.worker.made_commits import keeper_of


def test_processes_with_and_without_replay_form_one_world_that_notes_nothing_and_say_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(Recorder, "_demand_repeatable", lambda self: None)
    entered = []
    monkeypatch.setattr(Recorder, "enter", lambda self, comms, **_: entered.append(comms.rank()))

    def rank(comms: LockstepComms, *, both: bool) -> None:
        replays = both or comms.rank() == 0
        keeper, _, _ = keeper_of(comms, None, optimizer=True, settings=WorkerSettings(replay=replays))
        keeper.sync()
        keeper.sync()

    _, fabric = in_lockstep(2, lambda comms: rank(comms, both=False))
    assert not [what for what in fabric.log if "replay" in what]
    assert entered == []
    [warning] = [text for text in caplog.messages if text.startswith("run --replay")]
    assert "1 of 2 processes" in warning
    in_lockstep(2, lambda comms: rank(comms, both=True))
    assert sorted(entered) == [0, 0, 1, 1]


def test_averages_and_replay_exclude_each_other_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone_together, "WorkerSettings", lambda: WorkerSettings(replay=True))
    with pytest.raises(UsageError, match=r"LocalSGD.*leave out --replay"):
        alone_together.Process(alone_together.local_sgd(4))
