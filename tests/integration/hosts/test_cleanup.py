"""Test hosts do not survive the session that made them, however it ends."""

import os
import random
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.support import marks, namespaces
from tests.support.processes import run_process
from tests.support.pytest_plugin import FRESH

HANGS = """
import os, time

def test_hangs(nethosts):
    hosts = nethosts(2)
    with hosts.launcher.popen(["ssh", "h1", "echo up; exec sleep 98"]) as process:
        process.wait_for("up")
        print("prefix=" + hosts.prefix, "dir=" + str(hosts.directory), flush=True)
        time.sleep(100)
"""

FORGETS = """
from tests.support.nethosts import NetHosts

def test_forgets(nethosts):
    hosts = NetHosts(1)
"""


def inner(path: Path, text: str):
    path.mkdir()
    (path / "test_it.py").write_text(text)
    (path / "pytest.ini").write_text("[pytest]\n")
    plugins = ["-p", "tests.support.pytest_plugin", "-p", "tests.support.nethosts", "-p", "no:cacheprovider"]
    return run_process([sys.executable, "-m", "pytest", *plugins, "-s", str(path)], cwd=path, env=FRESH)


def test_hosts_of_a_killed_session_are_removed_by_the_next_and_those_of_a_living_one_are_let_be(nethosts, tmp_path):
    mine = nethosts(1)
    with inner(tmp_path / "first", HANGS) as process:
        said = process.wait_for(r"prefix=(\S+) dir=(\S+)")
        prefix, directory = said.group(1), Path(said.group(2))
        process.kill()
        process.popen.wait(10)
        orphans = [pid for name in namespaces.named(prefix) for pid in namespaces.processes(name)]
        assert any("sleep 98" in marks.command_line(pid) for pid in orphans)
        assert directory.exists()
        with inner(tmp_path / "second", "def test_nothing(): pass") as following:
            assert following.wait() == 0, following.output
        assert f"removed what a killed session had left: network namespace {prefix}h1" in following.output
        assert f"namespace {mine.prefix}" not in following.output
    assert [pid for pid in orphans if marks.start_time(pid) is not None] == []
    assert namespaces.named(prefix) == []
    assert not directory.exists()
    assert not [name for name in os.listdir("/run/netns") if name.startswith(prefix)]
    assert mine.launcher.run(["ssh", "h1", "hostname"]).stdout == "h1\n"


def test_hosts_that_a_test_forgets_fail_it_and_are_removed(nethosts, tmp_path):
    with inner(tmp_path / "forgets", FORGETS) as process:
        assert process.wait() == 1
    assert "1 passed, 1 error" in process.output
    assert "-bridge" in process.output
    assert f"network namespace hvdt-{process.pid}-" in process.output
    assert namespaces.named(f"hvdt-{process.pid}-") == []
    assert list(Path(tempfile.gettempdir()).glob(f"hvdt-{process.pid}-*")) == []


BUILDS = """
def test_builds(nethosts):
    print("start", flush=True)
    while True:
        hosts = nethosts(1)
        hosts.launcher.run(["ssh", "h1", "true"])
        hosts.close()
"""


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_session_killed_at_any_moment_leaves_nothing_to_the_next_but_one(nethosts, tmp_path):
    seed = int(os.environ.get("HVD_TEST_SEED", time.time_ns() % 10**6))
    draw = random.Random(seed)
    for attempt in range(6):
        with inner(tmp_path / f"killed-{attempt}", BUILDS) as process:
            process.wait_for("start")
            time.sleep(draw.uniform(0, 1.5))
            process.kill()
            process.popen.wait(10)
            prefix = f"hvdt-{process.pid}-"
            with inner(tmp_path / f"next-{attempt}", "def test_nothing(): pass") as following:
                assert following.wait(60) == 0, following.output
        left = namespaces.named(prefix) + [str(p) for p in Path(tempfile.gettempdir()).glob(f"{prefix}*")]
        assert left == [], f"seed {seed}, attempt {attempt}"
