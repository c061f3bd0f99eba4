"""``hvd-elastic run`` across real hosts: namespaces with an sshd each, and links that can be cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import COUNTER, ELASTIC, records
from tests.support import marks, namespaces
from tests.support.nethosts import NetHosts
from tests.support.processes import RunningProcess
from tests.support.waiting import wait_until

MakeHosts = Callable[[int], NetHosts]
TAP = Path(__file__).with_name("packet_capture.py")


def command(hosts: NetHosts, directory: Path, *words: str | Path) -> list[str]:
    options = ["--journal", str(directory / "journal.jsonl"), "--hosts-file", str(directory / "hosts")]
    key = ["--ssh-identity-file", hosts.horovodrun_options[hosts.horovodrun_options.index("--ssh-identity-file") + 1]]
    return [*ELASTIC, "run", *options, *key, *map(str, words)]


def set_hosts(directory: Path, *lines: str) -> None:
    """Put another list in the place of the last one, at once: half of a list is a list, too."""
    fresh = directory / "hosts.new"
    fresh.write_text("".join(f"{line}\n" for line in lines))
    fresh.replace(directory / "hosts")


def wait_for_size(directory: Path, job: RunningProcess, size: int) -> None:
    """Wait for a few steps of a world of ``size``, the newest that formed. (The file system is shared by all hosts.)"""

    def stepping() -> bool:
        formed = records(directory / "journal.jsonl", "resized")
        since = formed[-1].mono if formed else 0.0
        steps = [r for r in records(directory / "journal.jsonl", "stepped") if r.mono > since]
        return sum(r.get("size") == size for r in steps) > 2

    wait_until(stepping, what=f"steps of a world of {size}", timeout=80, show=lambda: job.output)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "hosts").write_text("h1:1\n")
    return tmp_path


@pytest.mark.soak
def test_environment_and_command_of_a_job_over_ssh_cannot_be_read_on_the_network(
    nethosts: MakeHosts, directory: Path
) -> None:
    hosts, seen, journal = nethosts(2), directory / "seen", directory / "journal.jsonl"
    (directory / "hosts").write_text("localhost:1\n")
    words = ["-np", "1", "--min-np", "1", sys.executable, COUNTER, "1000000000", "--token=rosebud"]
    with hosts.launcher.popen([sys.executable, TAP, seen]) as tap:
        tap.wait_for("listening")
        env = {"MY_SECRET": "hunter2", "HVD_ELASTIC_SAMPLE": "0"}
        with hosts.launcher.popen(command(hosts, directory, *words), env=env, cwd=directory) as job:
            wait_for_size(directory, job, 1)
            set_hosts(directory, "localhost:1", "h1:1")
            wait_for_size(directory, job, 2)
            assert records(journal, "exited") == []
            set_hosts(directory, "h1:1", "h2:1")
            wait_until(lambda: records(journal, "exited"), what="the end of the first", timeout=60)
            wait_for_size(directory, job, 2)
            spawned = {record.get("host"): record.get("pid") for record in records(journal, "spawned")}
            assert list(spawned) == ["localhost", "h1", "h2"]
            for name in ("h1", "h2"):
                assert spawned[name] in hosts[name].pids()
                assert marks.environment(spawned[name])["MY_SECRET"] == "hunter2"
                assert "--token=rosebud" in marks.command_line(spawned[name])
            lines = [marks.command_line(pid) for host in hosts for pid in host.pids()]
            assert not any("hunter2" in line for line in lines)
            job.send_signal(signal.SIGTERM)
            assert job.wait(60) == 143
            assert not any(map(marks.start_time, spawned.values()))
    on_the_wires = seen.read_bytes()
    assert on_the_wires.count(b'"do":"start"') >= 2  # the tap hears what launcher and agents say
    for place in (on_the_wires, journal.read_bytes()):
        assert b"hunter2" not in place
    assert b"rosebud" not in on_the_wires


def test_killing_the_launcher_ends_the_workers_on_every_host(nethosts: MakeHosts, directory: Path) -> None:
    hosts = nethosts(2)
    (directory / "hosts").write_text("h1:1\nh2:1\n")
    words = ["-np", "2", "--orphan-grace", "1", sys.executable, "-c", "import time\nwhile True: time.sleep(1)"]
    with hosts.launcher.popen(command(hosts, directory, *words), cwd=directory) as job:
        wait_until(
            lambda: len(records(directory / "journal.jsonl", "spawned")) == 2,
            what="two workers",
            timeout=60,
            show=lambda: job.output,
        )
        workers = [record.get("pid") for record in records(directory / "journal.jsonl", "spawned")]
        launcher = next(pid for pid in hosts.launcher.pids() if "hvd_elastic_ext.cli" in marks.command_line(pid))
        os.kill(launcher, signal.SIGKILL)
        wait_until(lambda: not any(map(marks.start_time, workers)), what="the end of both workers", timeout=30)


def test_hosts_that_cannot_be_reached_cost_this_machine_nothing(nethosts: MakeHosts, directory: Path) -> None:
    hosts = nethosts(1)
    hosts.launcher.resolve_own_name_to("127.0.1.1")  # as Debian has it; a job of several machines cannot work so
    namespaces.ip("-n", hosts.launcher.namespace, "route", "add", "default", "via", hosts["h1"].address)
    hosts["h1"].kill()
    (directory / "hosts").write_text("no-such-host.invalid:1\nh1:1\nlocalhost:1\n")
    env = {"HVD_ELASTIC_SAMPLE": "0"}
    words = ["-np", "1", "--blacklist-cooldown-range", "1", "2", sys.executable, COUNTER]
    journal = directory / "journal.jsonl"
    with hosts.launcher.popen(command(hosts, directory, *words), cwd=directory, env=env) as job:
        wait_for_size(directory, job, 1)
        strikes = lambda: [each for each in records(journal, "struck") if each.get("host") == "h1"]  # noqa: E731
        wait_until(strikes, what="an attempt to reach h1", timeout=60, show=lambda: job.output)
        assert strikes()[0].get("cause") == "unreachable"
        assert "ssh: connect to host h1" in strikes()[0].get("reason")
        assert {record.get("host") for record in records(journal, "spawned")} == {"localhost"}
        hosts["h1"].reboot()
        wait_until(lambda: "h1 cannot be used: " in job.stderr, what="h1", timeout=80, show=lambda: job.output)
        assert "the launcher's own machine cannot work with others: its own name 'launcher' leads to" in job.stderr
        steps = len(records(journal, "stepped"))
        wait_until(lambda: len(records(journal, "stepped")) > steps + 5, what="more steps", timeout=60)
        assert len(records(journal, "resized")) == 1
        assert {record.get("host") for record in records(journal, "struck")} == {"no-such-host.invalid", "h1"}
        job.send_signal(signal.SIGTERM)
        assert job.wait(30) == 143


@pytest.mark.soak
def test_a_host_with_other_code_is_left_out_with_the_reason_until_it_has_the_same(
    nethosts: MakeHosts, directory: Path
) -> None:
    hosts, journal = nethosts(2), directory / "journal.jsonl"
    code, other = directory / "code", directory / "other"
    for folder, text in ((code, "x = 1\n"), (other, "x = 2\n")):
        folder.mkdir()
        (folder / "part.py").write_text(text)
    mounted = hosts["h2"].run(["mount", "--bind", other, code])
    assert mounted.returncode == 0, mounted.output
    set_hosts(directory, "h1:1", "h2:1")
    words = ["-np", "1", "--min-np", "1", "--settle", "1", "--code", code, "--blacklist-cooldown-range", "1", "1"]
    env = {"HVD_ELASTIC_SAMPLE": "0"}
    with hosts.launcher.popen(
        command(hosts, directory, *words, sys.executable, COUNTER, "1000000000"), env=env, cwd=directory
    ) as job:
        wait_for_size(directory, job, 1)
        wait_until(lambda: records(journal, "struck"), what="a strike", timeout=60, show=lambda: job.output)
        (first, *_) = records(journal, "struck")
        assert first.get("host") == "h2"
        assert f"it has other code in {code} (" in first.get("reason")
        (other / "part.py").write_text("x = 1\n")
        wait_for_size(directory, job, 2)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 143


@pytest.mark.soak
def test_code_is_sent_to_each_host_that_has_other_or_none_also_later_and_again(
    nethosts: MakeHosts, directory: Path
) -> None:
    hosts, journal, code = nethosts(3), directory / "journal.jsonl", directory / "code"
    (code / "pkg").mkdir(parents=True)
    (code / ".gitignore").write_text("*.bin\n")
    (code / "large.bin").write_bytes(b"0" * 1000)
    (code / "pkg" / "part.py").write_text("x = 1\n")
    subprocess.run(["git", "init", "-q", str(code)], check=True)

    def own_disk(name: str) -> None:
        mounted = hosts[name].run(["mount", "-t", "tmpfs", "tmpfs", code])
        assert mounted.returncode == 0, mounted.output

    def has(name: str) -> str:
        return hosts[name].run(["sh", "-c", f"cd {code}; find . -name '*.*' -type f | sort; cat pkg/part.py"]).stdout

    for name in ("h1", "h2", "h3"):
        own_disk(name)
    assert hosts["h2"].run(["sh", "-c", f"mkdir {code}/pkg; echo 'x = 2' > {code}/pkg/part.py"]).returncode == 0
    set_hosts(directory, "h1:1", "h2:1")
    words = ["-np", "2", "--min-np", "1", "--settle", "1", "--code", code, "--send-code"]
    words += ["--blacklist-cooldown-range", "1", "1", sys.executable, COUNTER, "1000000000"]
    with hosts.launcher.popen(command(hosts, directory, *words), env={"HVD_ELASTIC_SAMPLE": "0"}, cwd=code) as job:
        wait_for_size(directory, job, 2)
        (code / "pkg" / "part.py").write_text("x = 3\n")  # what is sent is what was there at the start
        set_hosts(directory, "h1:1", "h2:1", "h3:1")
        wait_for_size(directory, job, 3)
        sent = "./.gitignore\n./pkg/part.py\nx = 1\n"
        assert {name: has(name) for name in ("h1", "h2", "h3")} == dict.fromkeys(("h1", "h2", "h3"), sent)
        hosts["h2"].kill()
        hosts["h2"].boot()
        own_disk("h2")
        hosts["h2"].restore()
        wait_until(lambda: has("h2") == sent, what="the code, again", timeout=90, show=lambda: job.output)
        wait_for_size(directory, job, 3)
        assert not any("code" in record.get("reason") for record in records(journal, "struck"))
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 143


@pytest.mark.soak
def test_an_edit_of_code_on_storage_that_all_hosts_have_is_not_undone_by_sending(
    nethosts: MakeHosts, directory: Path
) -> None:
    hosts, journal, code = nethosts(2), directory / "journal.jsonl", directory / "code"
    code.mkdir()
    (code / "part.py").write_text("x = 1\n")
    words = ["-np", "1", "--min-np", "1", "--settle", "1", "--code", code, "--send-code"]
    words += ["--blacklist-cooldown-range", "1", "1", sys.executable, COUNTER, "1000000000"]
    with hosts.launcher.popen(command(hosts, directory, *words), env={"HVD_ELASTIC_SAMPLE": "0"}, cwd=directory) as job:
        wait_for_size(directory, job, 1)
        (code / "part.py").write_text("x = 2  # hours of work\n")
        set_hosts(directory, "h1:1", "h2:1")
        wait_until(lambda: records(journal, "struck"), what="a strike", timeout=60, show=lambda: job.output)
        assert "it has other code in" in records(journal, "struck")[0].get("reason")
        assert (code / "part.py").read_text() == "x = 2  # hours of work\n"
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 143
