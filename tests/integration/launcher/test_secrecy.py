"""What can be read on the network of a job: a launcher and hosts of their own, with a tap on the launcher's wires."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.integration.launcher.conftest import COUNTER, ELASTIC
from tests.integration.launcher.test_over_ssh import records, wait_for_size
from tests.support import marks
from tests.support.nethosts import NetHosts

MakeHosts = Callable[[int], NetHosts]
TAP = Path(__file__).with_name("wiretap.py")


def test_neither_environment_nor_command_of_a_job_can_be_read_on_the_network(
    nethosts: MakeHosts, tmp_path: Path
) -> None:
    hosts, seen = nethosts(2), tmp_path / "seen"
    (tmp_path / "hosts").write_text("h1:1\nh2:1\n")
    options = ["--journal", tmp_path / "journal.jsonl", "--hosts-file", tmp_path / "hosts", "-np", "2"]
    command = [*ELASTIC, "run", *options, "--ssh-identity-file", hosts.identity, sys.executable, COUNTER]
    with hosts.launcher.popen([sys.executable, TAP, seen]) as tap:
        tap.wait_for("listening")
        env = {"MY_SECRET": "hunter2", "HVD_ELASTIC_SAMPLE": "0"}
        with hosts.launcher.popen([*command, "1000000000", "--token=rosebud"], env=env, cwd=tmp_path) as job:
            wait_for_size(tmp_path, job, 2)
            for record in records(tmp_path / "journal.jsonl", "spawned"):
                pid = record.get("pid")
                assert pid in hosts[record.get("host")].pids()
                assert marks.environment(pid)["MY_SECRET"] == "hunter2"
                assert "--token=rosebud" in marks.command_line(pid)
            job.send_signal(signal.SIGTERM)
            assert job.wait(60) == 143
    on_the_wires = seen.read_bytes()
    assert on_the_wires.count(b'"do":"start"') >= 2  # the tap hears what launcher and agents say
    assert b"hunter2" not in on_the_wires
    assert b"rosebud" not in on_the_wires
