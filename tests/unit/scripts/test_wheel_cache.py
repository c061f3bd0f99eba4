"""A wheel is built once, by one process, and appears whole or not at all."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tooling.wheel_cache import WheelCache, cache_directory
from tooling.wheel_key import WheelFacts


def write_wheel(work: Path) -> Path:
    wheel = work / "horovod-0.28.1-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    return wheel


def test_a_built_wheel_is_found_the_next_time(tmp_path: Path, facts: WheelFacts) -> None:
    cache = WheelCache(tmp_path)
    assert cache.find(facts) is None
    built = cache.get_or_build(facts, write_wheel)
    assert built.read_bytes() == b"a wheel"
    assert cache.get_or_build(facts, pytest.fail) == built


def test_the_facts_lie_beside_the_wheel(tmp_path: Path, facts: WheelFacts) -> None:
    wheel = WheelCache(tmp_path).get_or_build(facts, write_wheel)
    assert '"torch": "2.13.0+cpu"' in (wheel.parent / "facts.json").read_text()


def test_a_build_that_fails_leaves_no_wheel_and_no_work(tmp_path: Path, facts: WheelFacts) -> None:
    def fail(work: Path) -> Path:
        write_wheel(work)
        raise KeyboardInterrupt

    cache = WheelCache(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        cache.get_or_build(facts, fail)
    assert cache.find(facts) is None
    assert list((tmp_path / "work").iterdir()) == []
    assert cache.get_or_build(facts, write_wheel).exists()


def test_two_threads_that_want_one_wheel_build_it_once(tmp_path: Path, facts: WheelFacts) -> None:
    building, go_on = threading.Event(), threading.Event()
    builds: list[Path] = []

    def slow(work: Path) -> Path:
        builds.append(work)
        building.set()
        assert go_on.wait(10)
        return write_wheel(work)

    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(WheelCache(tmp_path).get_or_build(facts, slow)), daemon=True)
        for _ in range(2)
    ]
    threads[0].start()
    assert building.wait(10)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert len(builds) == 1
    assert len(set(results)) == 1
    assert len(results) == 2


BUILD_IN_ANOTHER_PROCESS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tooling.wheel_cache import WheelCache
from tooling.wheel_key import WheelFacts

def build(work):
    (work / "horovod.whl").write_text("half")
    print("building", flush=True)
    if sys.argv[3] == "hang":
        sys.stdin.read()
    return work / "horovod.whl"

facts = WheelFacts("0", 1, "t", "p", "c", "l", "m", None, None, ())
print(WheelCache(Path(sys.argv[2])).get_or_build(facts, build), flush=True)
"""


def start_build(root: Path, cache: Path, behaviour: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", BUILD_IN_ANOTHER_PROCESS, str(root / "scripts"), str(cache), behaviour]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_a_build_killed_outright_leaves_no_wheel_and_the_next_one_succeeds(tmp_path: Path, root: Path) -> None:
    with start_build(root, tmp_path, "hang") as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "building\n"
        killed.send_signal(signal.SIGKILL)
        killed.wait(10)
    assert list(tmp_path.glob("wheels/*/*.whl")) == []
    assert list(tmp_path.glob("work/*/*.whl")) != []
    with start_build(root, tmp_path, "finish") as second:
        out, _ = second.communicate(timeout=20)
    assert out.startswith("building\n")
    assert len(list(tmp_path.glob("wheels/*/*.whl"))) == 1
    assert list(tmp_path.glob("work/*")) == []


def test_the_second_process_says_that_it_waits_and_takes_what_the_first_built(tmp_path: Path, root: Path) -> None:
    with start_build(root, tmp_path, "hang") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "building\n"
        with start_build(root, tmp_path, "finish") as second:
            assert second.stderr is not None
            assert "Another process is building" in second.stderr.readline()
            first_out, _ = first.communicate("", timeout=20)
            second_out, _ = second.communicate(timeout=20)
    assert second_out == first_out
    assert "building" not in second_out


def test_the_cache_follows_xdg_but_not_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory({"XDG_CACHE_HOME": "/somewhere"}) == Path("/somewhere/hvd-elastic-ext")
    assert cache_directory({"XDG_CACHE_HOME": "here"}) == tmp_path / ".cache/hvd-elastic-ext"
    assert cache_directory({}) == tmp_path / ".cache/hvd-elastic-ext"


def test_a_directory_emptied_by_hand_is_filled_again(tmp_path: Path, facts: WheelFacts) -> None:
    cache = WheelCache(tmp_path)
    os.unlink(cache.get_or_build(facts, write_wheel))
    assert cache.find(facts) is None
    assert cache.get_or_build(facts, write_wheel).exists()
