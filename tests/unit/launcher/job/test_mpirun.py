"""The command and environment of ``mpirun``, and its messages."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.launcher.agents.transports.ssh import Ssh
from hvd_elastic_ext.launcher.job import mpirun

SSH = Ssh(Path("/job"), port=2222, identity_file="/keys/id")


def test_each_rank_has_a_line_with_its_host_and_this_machine_goes_by_its_own_name() -> None:
    hosts = ["localhost", "b", "b", "127.0.0.1"]
    text = mpirun.hostfile(hosts, lambda host: host != "b", here="head")
    assert text == "head\nb\nb\nhead\n"


def test_nothing_of_the_job_stands_on_the_command_line() -> None:
    words = mpirun.command(Path("/state/mpirun.hosts"), 3, generation=7)
    assert words[:7] == ["mpirun", "--wdir", "/", "--hostfile", "/state/mpirun.hosts", "-np", "3"]
    assert words[-1] == "7"


def test_mpirun_gets_its_options_and_no_secrets_and_the_users_options_go_first() -> None:
    environ = {"PATH": "/bin", "HOME": "/root", "TOKEN": "secret", "OMPI_MCA_hwloc_base_binding_policy": "core"}
    env = mpirun.environment(environ, ssh=SSH, interfaces=["eth1"], mark="0123")
    assert "TOKEN" not in env
    assert (env["PATH"], env["HOME"]) == ("/bin", "/root")
    assert env["OMPI_MCA_hwloc_base_binding_policy"] == "core"
    assert env["OMPI_MCA_btl_tcp_if_include"] == env["OMPI_MCA_oob_tcp_if_include"] == "eth1"
    ssh = env["OMPI_MCA_plm_rsh_agent"].split(" ")
    assert ssh[0] == "ssh"
    assert ssh[-4:] == ["-p", "2222", "-i", "/keys/id"]
    assert "host" not in ssh


@pytest.mark.parametrize(("strict", "accepts"), [("ask", True), ("true", False)])
def test_its_ssh_is_told_of_hosts_keys_what_agents_ssh_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: str, accepts: bool
) -> None:
    users, bin_folder = tmp_path / "users", tmp_path / "bin"
    users.write_text("h1 users-key\n")
    (tmp_path / "known_hosts").write_text("h2 jobs-key\n")
    bin_folder.mkdir()
    ssh_says = (
        f'#!/bin/sh\n[ "$1" = -G ] && echo "stricthostkeychecking {strict}" && echo "userknownhostsfile {users}"\n'
    )
    for name, text in (("ssh", ssh_says), ("mpirun", '#!/bin/sh\necho "agent: $OMPI_MCA_plm_rsh_agent"\nexit 3\n')):
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    monkeypatch.delenv("OMPI_MCA_plm_rsh_agent", raising=False)

    async def act() -> tuple[int, str]:
        ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        runs = mpirun.MpiRuns(
            tmp_path,
            mark="0123",
            ssh=SSH,
            interfaces=(),
            is_near=lambda host: False,
            ended=lambda generation, why: ended.set_result((generation, why)),
        )
        runs.begin(7, ["h1", "h2", "h1"])
        return await asyncio.wait_for(ended, 20)

    generation, why = asyncio.run(act())
    assert generation == 7
    assert "-oStrictHostKeyChecking=no" not in why
    known = tmp_path / "mpirun.known_hosts"
    assert known.read_text().split("\n") == ["h2 jobs-key", "", "h1 users-key", ""]
    assert (f"-oStrictHostKeyChecking=accept-new -oCheckHostIP=no -oUserKnownHostsFile={known}" in why) == accepts


def test_interfaces_are_mpis_own_choice_unless_they_are_named() -> None:
    assert not [name for name in mpirun.environment({}, ssh=SSH, interfaces=[], mark="0123") if "if_include" in name]


def test_the_first_line_within_its_frames_is_what_mpirun_says() -> None:
    said = "-----\n\n  ssh: connect to host b port 22: Connection refused\n-----\nORTE was unable to reliably start\n"
    assert mpirun.first_message(said) == "ssh: connect to host b port 22: Connection refused"
    assert mpirun.first_message("---\n") == ""


def test_another_mpirun_than_open_mpis_is_refused_with_the_way_to_get_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho HYDRA build details\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert f"{program} is not Open MPI's" in str(mpirun.why_not("mpirun"))
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    assert mpirun.why_not("mpirun") is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert "there is no mpirun on this machine; apt-get install openmpi-bin" in str(mpirun.why_not("mpirun"))


def test_an_mpirun_that_is_being_started_when_the_launcher_leaves_is_on_its_own_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created, left = threading.Event(), threading.Event()

    class Late(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            created.set()
            assert left.wait(30)

    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(subprocess, "Popen", Late)
    started: list[int] = []

    async def act() -> None:
        near = {"is_near": lambda host: True, "ended": lambda generation, why: None}
        runs = mpirun.MpiRuns(tmp_path, mark="0123", ssh=SSH, interfaces=(), **near)
        runs.begin(1, ["h1"])
        await asyncio.to_thread(created.wait, 30)
        await runs.end(everything=False)
        left.set()
        while not (runs._running and runs._running[0].returncode is not None):
            await asyncio.sleep(0.01)
        started.append(runs._running[0].pid)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        try:
            asyncio.run(asyncio.wait_for(act(), 30))
            gc.collect()
        finally:
            for pid in started:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    assert [str(each.message) for each in seen] == []


@pytest.mark.parametrize("over", [True, False])
def test_an_mpirun_of_an_earlier_world_is_waited_for_or_on_its_own_at_the_launchers_end(
    *, over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library warns of a child that is neither."""
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\ntrap '' TERM\ntouch {tmp_path}/pid.$$\nwhile :; do sleep 0.1; done\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(mpirun, "EXIT_TIMEOUT_S", 2 * mpirun.LOOK_S)

    def pids() -> list[int]:
        return [int(path.suffix[1:]) for path in tmp_path.glob("pid.*")]

    async def act() -> None:
        near = {"is_near": lambda host: True, "ended": lambda generation, why: None}
        runs = mpirun.MpiRuns(tmp_path, mark="0123", ssh=SSH, interfaces=(), **near)
        for world in (1, 2):
            runs.begin(world, ["h1"])
            while len(pids()) < world:
                await asyncio.sleep(0.01)
        await runs.end(everything=over)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(act())
        gc.collect()
    assert [str(each.message) for each in seen] == []
    for pid in pids():
        if over:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        else:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
