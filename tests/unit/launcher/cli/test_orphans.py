"""What is known of the processes of a job whose launcher was killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvd_elastic_ext.agent.claim import claim
from hvd_elastic_ext.core.commands import job_mark, socket_name
from hvd_elastic_ext.launcher.cli import no_answer, status
from hvd_elastic_ext.launcher.cli.no_answer import AgentState, agent_states, found_in

KEY = b"k" * 32
FOLDER = f"/tmp/hvd-elastic-0/train.{job_mark(KEY)}"
RUN = "20261123T121710-3f2a"


def test_agents_are_found_by_the_notice_files_that_they_hold() -> None:
    files = {
        9: [f"{FOLDER}/a.sock.notice", "/dev/null"],  # a fork of the agent
        7: ["/dev/null", f"{FOLDER}/a.sock.notice"],
        8: [f"{FOLDER}/w-0.job.sock.notice"],
        10: [f"/tmp/hvd-elastic-0/train.{job_mark(b'other')}/b.sock.notice"],
        11: [f"{FOLDER}/c.sock"],
    }
    assert found_in(files, KEY) == {"a.sock": 7, "w-0.job.sock": 8}


def test_an_agent_holds_the_file_by_which_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    claimed = claim("train", "w-0.job", KEY)
    try:
        held = [os.readlink(f"/proc/self/fd/{claimed.notice}")]
        assert found_in({1: held}, KEY) == {socket_name("w-0.job"): 1}
    finally:
        claimed.release()


def test_a_host_that_is_this_machine_and_has_no_agent_has_ended() -> None:
    found = agent_states(["a", "b", "c"], {socket_name("a"): 7}, lambda host: host == "b")
    assert found == {"a": AgentState.LIVE, "b": AgentState.ENDED, "c": AgentState.UNKNOWN}


def test_processes_that_are_known_to_be_dead_are_not_said_to_train() -> None:
    def said(agents: dict[str, int]) -> str:
        return status.what_is_left(RUN, {"localhost": 2, "b": 1}, agents, lambda host: host == "localhost")

    head = f"no launcher runs, and the last one did not end run {RUN}: "
    assert said({"localhost.sock": 7}).splitlines()[0] == (
        f"{head}its processes still run on localhost:2; its processes may still train on b:1"
    )
    assert said({}).splitlines()[0] == (
        f"{head}its processes may still train on b:1; nothing of it runs on localhost any more"
    )
    assert status.what_is_left(RUN, {"localhost": 2}, {}, lambda _: True) == (
        f"{head}nothing of it runs on localhost any more. The same `hvd-elastic run` command as before continues it, "
        "from its newest checkpoint if it has one"
    )


def test_the_agents_of_this_user_are_looked_for_in_proc() -> None:
    assert no_answer.agents_here(KEY) == {}
