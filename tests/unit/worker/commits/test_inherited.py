"""Who holds commit memory, and how it is asked for."""

from __future__ import annotations

import itertools
import json
import os
import socket

import pytest

from hvd_elastic_ext.core.errors import StateError, UsageError
from hvd_elastic_ext.worker.commits import inherited
from hvd_elastic_ext.worker.commits import torchrun_keeper as keeper
from hvd_elastic_ext.worker.commits.inherited import Agent, commit_descriptors, make_private, places

AGENT = Agent(pid=4711, started=99)


def test_descriptors_that_were_handed_down_come_first():
    assert commit_descriptors({"HVD_ELASTIC_COMMIT_FDS": "7,8", "TORCHELASTIC_RUN_ID": "job"}) == (7, 8)


def test_where_nobody_holds_memory_there_is_none():
    assert commit_descriptors({}) is None
    assert commit_descriptors({"HVD_ELASTIC_COMMIT_FDS": ""}) is None


@pytest.mark.parametrize("given", ["7", "7,", "a,b", "7;8", "-1,3"])
def test_a_variable_that_is_not_a_list_of_descriptors_is_named_with_its_value(given):
    with pytest.raises(UsageError, match="HVD_ELASTIC_COMMIT_FDS='" + given):
        commit_descriptors({"HVD_ELASTIC_COMMIT_FDS": given})


def test_a_worker_whose_agent_has_ended_asks_nobody(monkeypatch):
    monkeypatch.setattr(os, "getppid", lambda: 1)
    monkeypatch.setattr(inherited, "_program", lambda pid: "systemd")
    assert commit_descriptors({"TORCHELASTIC_RUN_ID": "job"}) is None


def test_the_agent_is_the_nearest_ancestor_without_the_runs_variables(monkeypatch):
    monkeypatch.setattr(os, "getppid", lambda: 30)
    monkeypatch.setattr(inherited, "_belongs_to", lambda pid, run: pid > 10)
    monkeypatch.setattr(inherited, "_parent", lambda pid: pid - 10)
    monkeypatch.setattr(inherited, "_program", lambda pid: "python3.12")
    monkeypatch.setattr(keeper, "start_time", lambda pid: pid * 100)
    assert inherited.find_agent("job") == Agent(pid=10, started=1000)


def test_each_life_of_each_agent_and_each_run_has_a_place_of_its_own(tmp_path):
    environ = {"XDG_RUNTIME_DIR": "/run/user/1000"}
    found = {places(run, agent, environ) for run in ("a", "b") for agent in (AGENT, Agent(4711, 100), Agent(4712, 99))}
    assert len(found) == 6
    assert all(str(one).startswith("/run/user/1000/hvd-elastic-keeper-") for (one,) in found)


def test_a_socket_may_lie_in_a_folder_of_any_length(tmp_path):
    folder = tmp_path / ("long" * 50)
    folder.mkdir()
    with keeper.address(folder) as path:
        assert len(path) < 100
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
    assert (folder / keeper.SOCKET).is_socket()


def test_what_is_a_link_or_another_users_is_not_cleared(tmp_path):
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.mkdir()
    (victim / keeper.LOCK).touch()
    link.symlink_to(victim)
    keeper.clear(link)
    assert (victim / keeper.LOCK).exists()
    keeper.clear(victim)
    assert not victim.exists()


def test_a_directory_that_others_may_enter_is_refused(tmp_path):
    (tmp_path / "place").mkdir()
    (tmp_path / "place").chmod(0o750)
    with pytest.raises(StateError, match="XDG_RUNTIME_DIR"):
        make_private(tmp_path / "place")


def test_a_link_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "place").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="remove it"):
        make_private(tmp_path / "place")


@pytest.mark.parametrize(
    "line",
    [
        b"{", b"[]", b"\xff", b"{}", b'{"local_rank": -1}', b'{"local_rank": true}', b'{"local_rank": 4096}',
    ],
)  # fmt: skip
def test_what_is_not_a_request_is_refused_in_words(line, slots):
    answer, inodes = asked(line, slots)
    assert b"local_rank" in answer
    assert inodes == []


def asked(line, slots):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(line)
        keeper._answer(theirs, slots)
        theirs.close()
        answer, descriptors, _, _ = socket.recv_fds(ours, 256, 16)
    inodes = [os.fstat(descriptor).st_ino for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    return answer, inodes


@pytest.fixture
def slots():
    kept = {}
    yield kept
    for descriptor in itertools.chain.from_iterable(kept.values()):
        os.close(descriptor)


def test_a_slot_keeps_its_memory_and_has_it_alone(slots):
    first, again, other = (asked(json.dumps({"local_rank": rank}).encode(), slots) for rank in (0, 0, 1))
    assert first == again
    assert len({*first[1], *other[1]}) == 6
    assert first[0] == other[0] == b"ok"


def test_another_user_gets_nothing(slots, monkeypatch):
    monkeypatch.setattr(keeper, "peer_user", lambda connection: os.geteuid() + 1)
    assert asked(b'{"local_rank": 0}', slots) == (b"this keeper serves another user", [])
    assert slots == {}
