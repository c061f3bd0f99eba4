"""Inbox, fingerprints, settings and the journal's sink."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.journal import Journal, read
from hvd_elastic_ext.io.append_file import AppendFile
from hvd_elastic_ext.worker.state.journal import Reporter, plain
from hvd_elastic_ext.worker.state.keeper import WorkerSettings
from hvd_elastic_ext.worker.state.mixin import _Early
from hvd_elastic_ext.worker.sync.exchange import fingerprint
from hvd_elastic_ext.worker.sync.host_updates import Inbox
from tests.support.clock import ManualClock


@pytest.mark.parametrize(
    "other",
    [
        {"w": torch.zeros(2), "n": 2},
        {"w": torch.zeros(2, dtype=torch.float64), "n": 1},
        {"w": torch.zeros(1, 2), "n": 1},
        {"w": torch.tensor([0.0, -0.0]), "n": 1},
        {"w": torch.zeros(2), "n": True},
        {"w": torch.zeros(2)},
    ],
)
def test_fingerprints_tell_different_states_apart(other: object) -> None:
    assert fingerprint({"n": 1, "w": torch.zeros(2)}) == fingerprint({"w": torch.zeros(2), "n": 1})
    assert fingerprint({"w": torch.zeros(2), "n": 1}) != fingerprint(other)


def test_sparse_bfloat16_and_turned_tensors_have_fingerprints() -> None:
    turned = torch.arange(6).view(2, 3).t()
    assert fingerprint(turned) == fingerprint(turned.contiguous())
    assert fingerprint(torch.ones(2, dtype=torch.bfloat16)) != fingerprint(torch.ones(2, dtype=torch.float16))
    assert fingerprint(torch.eye(2).to_sparse()) == fingerprint(torch.eye(2))
    assert fingerprint(torch.arange(2.0)[::2]) == fingerprint(torch.zeros(1))
    assert fingerprint(torch.tensor([1j]).conj()) == fingerprint(torch.tensor([complex(0, -1)]))


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_sample_interval_that_is_not_a_time_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"HVD_ELASTIC_SAMPLE is .*; write a time, such as 2s, or 0"):
        WorkerSettings.from_environ({"HVD_ELASTIC_SAMPLE": text})


def test_settings_of_a_worker_have_defaults_for_all_but_its_host() -> None:
    settings = WorkerSettings.from_environ({"HOROVOD_HOSTNAME": "h2"})
    assert settings == WorkerSettings(host="h2", journal=None, sample=1.0)


def test_frequent_events_are_due_once_an_interval_each_kind_by_itself() -> None:
    clock = ManualClock()
    reporter = Reporter(lambda event: None, clock, sample=1.0, host="h1")
    assert [reporter.due("stepped"), reporter.due("stepped"), reporter.due("committed")] == [True, False, True]
    clock.advance(1.0)
    assert reporter.due("stepped")


def test_only_what_a_line_can_hold_is_journalled() -> None:
    values = {"epoch": 1, "loss": float("nan"), "name": "x", "long": "x" * 999, "list": [1], "on": True}
    assert plain(values) == {"epoch": 1, "loss": "nan", "name": "x", "on": True}


def test_a_line_cut_short_by_a_full_disk_does_not_swallow_the_next(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    sink = AppendFile.existing(journal)
    fd = os.open(journal, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b'{"t": 1, "mono"')
    os.close(fd)
    sink._torn = True  # what a short write leaves
    Journal(sink, ManualClock()).record("finished", generation=0, code=0)
    assert [record.event for record in read(journal.read_text().splitlines())] == ["finished"]


def test_a_notice_before_there_is_a_state_goes_to_the_first_one_only() -> None:
    early, first, second, third = _Early(), Inbox(), Inbox(), Inbox()
    early.on_hosts_update(None)
    early.hand_over(first)
    assert first.pending == 1
    early.on_hosts_update(None)
    del first  # its State is gone, and it has received both
    early.hand_over(second)
    assert second.pending == 0
    del second
    early.on_hosts_update(None)  # nobody has received this one
    early.hand_over(third)
    assert third.pending == 1
