"""``hvd-elastic run`` with real Horovod on loopback hosts."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import COUNTER, ELASTIC, Launched, alive
from tests.support import marks
from tests.support.processes import run_process
from tests.support.waiting import wait_until

PYTHON = sys.executable
ENDLESS = [PYTHON, "-c", "import time\nwhile True: time.sleep(1)"]
UNTIL_TOLD = [PYTHON, "-c", "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)"]


@pytest.mark.soak
def test_a_job_with_pushed_hosts_replays_its_events_to_the_same_decisions(
    launched: Launched,
) -> None:
    job, socket, recorded = launched, launched.directory / "push.sock", launched.directory / "recorded.jsonl"
    job.set_hosts("no-such-host.invalid:1", "localhost:1")
    daemon = [PYTHON, "-m", "discover.cli", "--source", "file", "--watch", job.hosts]
    daemon += ["--hosts-file", job.directory / "published", "--listen", f"unix://{socket}"]
    options = ("-np", "1", "--max-np", "2", "--min-np", "1", "--record-events", recorded)
    with run_process(daemon) as discover:
        wait_until(socket.exists, what="the daemon's socket", show=lambda: discover.output)
        with job.run(*options, PYTHON, COUNTER, source=("--discovery", f"unix://{socket}")) as process:
            job.wait_for_steps(1)
            job.wait_for("a vain attempt", lambda: job.events("struck"))  # a resolver may be slow
            job.set_hosts("no-such-host.invalid:1", "localhost:1", "127.0.0.1:1")  # by name the last would be rank 0
            job.wait_for_steps(2)
            discover.kill()
            job.wait_for("the loss of the daemon being noted", lambda: job.events("refused"))
            before = job.steps_at(2)
            job.wait_for("more steps", lambda: job.steps_at(2) > before + 5)
            process.terminate()
            assert process.wait(60) == 143, process.output
    assert [list(record.get("hosts")) for record in job.events("resized")] == [
        ["localhost"],
        ["localhost", "127.0.0.1"],
    ]
    struck = {(record.get("host"), record.get("cause")) for record in job.events("struck")}
    assert struck == {("no-such-host.invalid", "unreachable")}
    assert stat.S_IMODE(recorded.stat().st_mode) == 0o600
    with run_process([*ELASTIC, "events", "--replay", str(recorded)], cwd=job.directory) as replay:
        assert replay.wait(60) == 0, replay.output
    assert "the same decisions" in replay.stdout
    assert "-> journal resized" in replay.stdout


@pytest.mark.soak
def test_a_change_that_comes_while_a_world_forms_is_not_lost(launched: Launched) -> None:
    launched.set_hosts("localhost:1")
    with launched.run("-np", "1", "--min-np", "1", PYTHON, COUNTER):
        launched.wait_for_steps(1)
        launched.set_hosts("localhost:1", "127.0.0.1:1")
        launched.wait_for("the second world", lambda: launched.events("resized")[-1].get("size") == 2)
        launched.set_hosts("localhost:1", "127.0.0.1:1", "127.0.0.2:1")  # the newcomer has not even booted
        launched.wait_for_steps(3, timeout=90)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-np", "1", PYTHON, "-c", "raise SystemExit(7)"), ["localhost[0] crashed: exit code 7"]),
        (("-np", "1", "/etc/passwd", "train.py"), ["cannot start the training process: ", "/etc/passwd"]),
        (
            ("-np", "3", "--elastic-timeout", "1", *ENDLESS),
            ["slots needed: 3, published: 1 (localhost) after 1 s"],
        ),
        (
            ("-np", "1", "--network-interfaces", "nowhere0", *ENDLESS),
            ["network interface: nowhere0 has no IPv4 address here; ", "(this machine has: "],
        ),
        (
            ("-np", "1", "--host-discovery-script", "/nowhere/discover.sh", *ENDLESS),
            ["/nowhere/discover.sh: ended with exit code 127"],
        ),
        (
            ("-np", "1", "--rsh", "ssh", *ENDLESS),
            ["localhost: ", "ssh: No such file"],
        ),
    ],
    ids=["script fails", "no command", "few slots", "no interface", "no discovery script", "no ssh"],
)
def test_a_job_that_cannot_continue_ends_with_exit_code_1_and_the_reason(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: list[str]
) -> None:
    if "ssh" in words:
        monkeypatch.setenv("PATH", str(launched.directory))
    launched.set_hosts("localhost:1")
    source = ("--settle", "0") if "--host-discovery-script" in words else ()
    with launched.run(*words, source=source) as process:
        assert process.wait(60) == 1
    assert all(each in process.stderr for each in said), process.stderr
    assert "Traceback" not in process.output
    assert launched.events("finished")[-1].get("code") == 1


def test_an_empty_hosts_file_at_the_start_is_said_with_a_rest_of_time_that_falls(launched: Launched) -> None:
    launched.set_hosts()
    said = rf"waiting: for a first host: no host in {launched.hosts}; at most (\d+) s more, then the job fails"
    with launched.run("-np", "1", "--job", "empty", "--elastic-timeout", "300", *ENDLESS) as process:
        process.wait_for(rf"(?s){said}.*{said}")
        first, second = (int(rest) for rest in re.findall(said, process.stderr)[:2])
        assert 3 <= first - second <= 5
        with run_process([*ELASTIC, "status", "empty"], cwd=launched.directory) as status:
            assert status.wait(60) == 0, status.output
        found = re.search(said, status.stdout)
        assert found is not None, status.output
        assert int(found[1]) <= second
        launched.set_hosts("localhost:1")
        launched.wait_for("a worker", lambda: launched.events("spawned"))
        process.terminate()
        assert process.wait(60) == 143, process.output


NEVER_TRAINS = "import time\nimport horovod.torch as hvd\nhvd.init()\nwhile True: time.sleep(1)"


def test_a_script_that_never_trains_is_told_within_5_s_and_reported_after_progress_timeout(launched: Launched) -> None:
    launched.set_hosts("localhost:1")
    with launched.run("-np", "1", "--progress-timeout", "6", PYTHON, "-c", NEVER_TRAINS) as process:
        process.wait_for(
            r"no step for [345] s: rank 0 \(localhost\[0\]\) has neither entered an elastic loop nor reported a step"
            r".*; reported as stalled after 6 s \(--progress-timeout\)",
            timeout=120,
        )
        launched.wait_for("the stall", lambda: launched.events("stalled"))
        assert launched.events("stalled")[0].get("ranks") == [0]
        process.terminate()
        assert process.wait(60) == 143, process.output


def test_a_discovery_script_that_hangs_later_removes_no_host(launched: Launched) -> None:
    script = launched.directory / "discover.sh"
    script.write_text("#!/bin/sh\n[ -e hang ] && echo >>hung && exec sleep 1000\necho localhost:1\n")
    script.chmod(0o755)
    with launched.run("-np", "1", *UNTIL_TOLD, source=("--host-discovery-script", str(script))) as process:
        launched.wait_for("a worker", lambda: launched.events("spawned"))
        (launched.directory / "hang").touch()
        launched.wait_for("a script that hangs", (launched.directory / "hung").exists)
        (launched.directory / "go").touch()
        assert process.wait(60) == 0, process.output


@pytest.mark.parametrize(
    ("when", "number", "code"),
    [("started", signal.SIGTERM, 143), ("spawned", signal.SIGINT, 130)],
    ids=["while it still imports", "while it trains"],
)
def test_a_signal_ends_every_worker_and_is_the_exit_code(launched: Launched, when: str, number: int, code: int) -> None:
    launched.set_hosts("localhost:2")
    with launched.run("-np", "2", *ENDLESS) as process:
        launched.wait_for(when, lambda: len(launched.events(when)) == (2 if when == "spawned" else 1))
        process.send_signal(number)
        assert process.wait(20) == code
        assert process.tree() == []
    assert "Traceback" not in process.output
    assert f"hvd-elastic run: stopped by {signal.Signals(number).name}" in process.output
    assert launched.events("finished")[-1].get("code") == code
    assert '"event":"finished"' in launched.journal.read_text().splitlines()[-1]


def test_workers_that_ignore_sigterm_and_leave_their_group_are_killed_after_the_grace(launched: Launched) -> None:
    stubborn = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0: os.setsid()\n"
        "while True: time.sleep(1)\n"
    )
    launched.set_hosts("localhost:1")
    with launched.run("-np", "1", PYTHON, "-c", stubborn) as process:
        launched.wait_for("a worker", lambda: launched.events("spawned"))
        wait_until(lambda: len(process.tree()) >= 3, what="an agent, its process and that one's child")
        process.terminate()
        assert process.wait(30) == 143
        assert process.tree() == []


def test_killing_the_launcher_leaves_no_worker(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    with launched.run("-np", "2", "--orphan-grace", "1", *ENDLESS) as process:
        launched.wait_for("two workers", lambda: len(launched.events("spawned")) == 2)
        process.kill()
        wait_until(lambda: process.tree() == [], what="the end of all workers", timeout=20)


def test_killing_an_agent_ends_its_training_process(launched: Launched) -> None:
    launched.set_hosts("localhost:1")
    with launched.run("-np", "1", *ENDLESS) as process:
        launched.wait_for("a worker", lambda: launched.events("spawned"))
        worker = launched.pids()["localhost"]
        agent = next(pid for pid in process.tree() if "hvd_elastic_ext.agent" in marks.command_line(pid))
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: not alive(worker), what="the end of the training process")
        assert process.wait(30) == 1


def test_agents_run_no_file_of_the_jobs_directory_and_output_has_the_rank(launched: Launched) -> None:
    for name in ("json", "signal", "socket"):
        (launched.directory / f"{name}.py").write_text("import os\nopen('was-run', 'w').close()\nos._exit(66)\n")
    output = launched.directory / "out"
    command = [Path(PYTHON).with_name("hvd-elastic"), "run", "-H", "localhost:1", "-np", "1"]  # -m would run them
    command += ["--output-filename", output, "--prefix-output-with-timestamp"]
    command += ["sh", "-c", "echo hello; printf 'no newline'"]
    for _ in range(2):
        with run_process([*map(str, command)], cwd=launched.directory) as process:
            assert process.wait(60) == 0, process.output
        lines = re.findall(r"^\w+ \w+ +\d+ \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:(.*)$", process.stdout, re.MULTILINE)
        assert lines == ["hello", "no newline"], process.output
    assert (output / "rank.0/stdout").read_text() == "hello\nno newline\n" * 2, "files are appended to"
    assert {path.name for path in output.iterdir()} == {"index.jsonl", "rank.0"}
    assert not (launched.directory / "was-run").exists()


def test_a_hosts_file_may_have_comments_and_unknown_keys_of_horovods_file_are_named(launched: Launched) -> None:
    launched.set_hosts("  # two machines of rack 1", "localhost:1  # the first", " 127.0.0.1:1 ")
    (launched.directory / "horovod.yaml").write_text("params: {fusion_treshold_mb: 64}")
    with launched.run("-np", "2", "--config-file", "horovod.yaml", "echo", "hello") as process:
        assert process.wait(60) == 0, process.output
    assert len(re.findall(r"^\[\d\]<stdout>:hello$", process.stdout, re.MULTILINE)) == 2
    said = "--config-file horovod.yaml: unknown key 'params: fusion_treshold_mb' (did you mean 'params: fusion_thresh"
    assert process.output.count(said) == 1


TALKER = """
import sys, time
for stream in (sys.stdout, sys.stderr):
    for _ in range(10_000):
        stream.write("x" * 100 + "\\n")
    stream.flush()
open("written", "w").close()
while True: time.sleep(1)
"""


def test_a_reader_that_stops_delays_neither_failures_nor_signals(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    pipe = launched.directory / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    run = [*ELASTIC, "run", "--hosts-file", launched.hosts, "--journal", launched.journal, "-np", "1", "--max-np", "1"]
    try:
        with run_process(
            ["sh", "-c", 'exec "$@" > "$0" 2>&1', pipe, *run, PYTHON, "-c", TALKER], cwd=launched.directory
        ) as process:
            launched.process = process
            launched.wait_for("two megabytes that were said", (launched.directory / "written").exists)
            os.kill(launched.events("spawned")[-1].get("pid"), signal.SIGKILL)
            launched.wait_for("the end that was noticed", lambda: launched.events("exited"))
            process.terminate()
            assert process.wait(60) == 143
            assert process.tree() == []
        assert b"[0]<std" in os.read(reader, 1 << 16)  # after what a slow start says first
    finally:
        os.close(reader)
    assert launched.events("finished")[-1].get("reason") == "stopped by SIGTERM"


def test_a_host_without_the_launchers_directory_runs_commands_given_by_absolute_path(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = launched.directory / "ssh"  # on a "host" where the directory of the launcher is not
    ssh.write_text('#!/bin/sh\nfor last; do :; done\ncd /\nexec sh -c "cd /nowhere; ${last#*; }"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{launched.directory}:{os.environ['PATH']}")
    launched.set_hosts("localhost:1")
    with launched.run("-np", "1", "--rsh", "ssh", "/bin/pwd") as process:
        assert process.wait(60) == 0, process.output
    assert "[0]<stdout>:/\n" in process.stdout


def test_a_job_under_nohup_outlives_its_terminal(launched: Launched) -> None:
    launched.set_hosts("localhost:1")
    nohup = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]
    arguments = ["run", "--hosts-file", launched.hosts, "--journal", launched.journal, "-np", "1"]
    with run_process([*nohup, *ELASTIC, *map(str, arguments), *UNTIL_TOLD], cwd=launched.directory) as process:
        launched.process = process
        launched.wait_for("a worker", lambda: launched.events("spawned"))
        process.send_signal(signal.SIGHUP)
        (launched.directory / "go").touch()
        assert process.wait(30) == 0, process.output
