"""A real job that asks a program for hosts, and gives one back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import COUNTER, ELASTIC, Ask, Launched
from tests.support import bad_servers
from tests.support.bad_servers import answering, says

pytestmark = pytest.mark.timeout(300)

CLOUD = """#!{python}
import os
wanted, leaving = int(os.environ["HVD_ELASTIC_HOSTS"]), os.environ["HVD_ELASTIC_LEAVING"].split(",")
names = [name for name in ("h-0", "h-1", "h-2") if name not in leaving][:wanted]
with open("hosts.new", "w") as file:
    file.writelines(f"{{name}}:1\\n" for name in names)
os.replace("hosts.new", "hosts")
"""
"""What makes hosts come and go."""


def cloud(folder: Path) -> Path:
    program = folder / "cloud"
    program.write_text(CLOUD.format(python=sys.executable))
    program.chmod(0o700)
    return program


def scaled(launched: Launched) -> list[tuple[int, list[str]]]:
    return [(record.get("hosts"), record.get("leaving")) for record in launched.events("scaled")]


def asks_a_program(launched: Launched, folder: Path, *, queue: str) -> tuple[Path, tuple[str | Path, ...]]:
    """The file with the length of a queue, and the options of a job on one host that goes by it."""
    length = folder / "queue"
    length.write_text(queue)
    launched.set_hosts("h-0:1")
    sizes = ("-np", "1", "--min-np", "1", "--max-np", "2", "--rsh", "local", "--settle", "0.5")
    scale = ("--autoscale", "threshold:queue=10,down=1", "--scale-with", f"exec:{cloud(folder)}")
    return length, (*sizes, *scale, "--observe", f"queue=file:{length}", "--state-dir", folder / "state")


@pytest.mark.soak
def test_a_queue_brings_a_host_and_its_end_gives_the_host_back_without_a_lost_step(
    launched: Launched, tmp_path: Path
) -> None:
    queue, words = asks_a_program(launched, tmp_path, queue="20")
    with launched.run(*words, sys.executable, COUNTER, 10**6):
        launched.wait_for_steps(2, timeout=200)
        assert scaled(launched) == [(2, [])]
        assert launched.events("started")[0].get("autoscale") == "threshold:queue=10,down=1"
        queue.write_text("0")
        launched.wait_for("the smaller world", lambda: len(scaled(launched)) == 2, timeout=60)
        launched.wait_for_steps(1, timeout=60)
        assert scaled(launched)[1] == (1, ["h-1"])
        launched.wait_for("the host's end", lambda: launched.hosts.read_text() == "h-0:1\n")

        ask = [*ELASTIC, "scale", "2", "--state-dir", tmp_path / "state"]
        said = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
        assert said.startswith("asked for 2 hosts, within --min-np and --max-np")
        launched.wait_for_steps(2, timeout=200)
    resized = launched.events("resized")
    assert [record.get("cause") for record in resized] == ["start", "hosts added", "hosts removed", "hosts added"]
    assert [record.get("steps_lost") for record in resized[1:]] == [0, 0, 0]
    assert [record.generation > 0 for record in launched.events("published")] == [False, True, True, True]
    assert not launched.events("struck", "rolled_back")


@pytest.mark.soak
def test_a_size_by_hand_holds_under_the_next_launcher(launched: Launched, tmp_path: Path) -> None:
    _, words = asks_a_program(launched, tmp_path, queue="5")
    with launched.run(*words, sys.executable, COUNTER, 10**6) as process:
        launched.wait_for_steps(1, timeout=200)
        subprocess.run([*ELASTIC, "scale", "2", "--state-dir", tmp_path / "state"], check=True)
        launched.wait_for_steps(2, timeout=200)
        process.kill()
        process.wait()
        with launched.run(*words, sys.executable, COUNTER, 10**6):
            launched.wait_for("the next launcher", lambda: len(launched.events("started")) == 2, timeout=100)
            before = launched.steps_at(2)
            launched.wait_for("steps beside it", lambda: launched.steps_at(2) > before + 100, timeout=200)
            assert scaled(launched) == [(2, [])], "the policy would have given the host back"
            subprocess.run([*ELASTIC, "scale", "auto", "--state-dir", tmp_path / "state"], check=True)
            launched.wait_for("the policy's size", lambda: scaled(launched)[1:] == [(1, ["h-1"])], timeout=100)


def test_a_job_that_asks_nobody_says_how_to_be_asked(launched: Launched, ask: Ask, tmp_path: Path) -> None:
    launched.set_hosts("localhost:1")
    with launched.run("-np", "1", "--state-dir", tmp_path / "state", "sleep", "1000"):
        launched.wait_for("a process", lambda: launched.events("spawned"))
        answer = ask("scale", "2", "--state-dir", str(tmp_path / "state"))
        assert answer.code == 2
        assert "start it with --autoscale POLICY --scale-with KIND/NAME" in answer.err
        assert scaled(launched) == []
        assert launched.events("started")[0].get("autoscale") is None


def test_a_server_of_signals_that_answers_no_http_and_a_file_of_nonsense_do_not_end_the_job(
    launched: Launched, tmp_path: Path
) -> None:
    (tmp_path / "deep").write_text("{" + '"a":{' * 100_000)
    launched.set_hosts("localhost:1")
    trains = "import time; time.sleep(4)"
    with answering(says(bad_servers.NOT_HTTP)) as url:
        observed = (f"queue={url}/q", f"deep=file:{tmp_path}/deep")
        words = ("-np", "1", "--max-np", "2", "--autoscale", "threshold:queue=10", "--state-dir", tmp_path / "state")
        more = [word for each in observed for word in ("--observe", each)]
        with launched.run(*words, *more, sys.executable, "-c", trains) as process:
            assert process.wait(120) == 0, process.output
    said = process.stderr
    assert f"--observe queue: {url}/q " in said
    assert f"--observe deep: file:{tmp_path}/deep " in said
    assert "defect" not in said
    assert "\x1b" not in said
