"""One process builds a wheel once, and it appears complete or not at all."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tooling.wheel_cache import WheelCache, cache_directory
from tooling.wheel_key import WheelFacts


def write_wheel(work: Path) -> Path:
    wheel = work / "horovod-0.28.1-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    return wheel


def test_a_wheel_is_built_once_and_again_after_it_was_removed_by_hand(tmp_path: Path, facts: WheelFacts) -> None:
    cache = WheelCache(tmp_path)
    assert cache.find(facts) is None
    built = cache.get_or_build(facts, write_wheel)
    assert built.read_bytes() == b"a wheel"
    assert '"torch": "2.13.0+cpu"' in (built.parent / "facts.json").read_text()
    assert cache.get_or_build(facts, pytest.fail) == built
    built.unlink()
    assert cache.find(facts) is None
    assert cache.get_or_build(facts, write_wheel).exists()


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


BUILD = """
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

facts = WheelFacts("0", 1, "t", None, "p", "c", "l", "m", None, None, ())
print(WheelCache(Path(sys.argv[2])).get_or_build(facts, build), flush=True)
"""


def build(root: Path, cache: Path, behaviour: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", BUILD, str(root / "scripts"), str(cache), behaviour]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_a_killed_build_leaves_no_wheel_and_the_next_one_succeeds(tmp_path: Path, root: Path) -> None:
    with build(root, tmp_path, "hang") as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "building\n"
        killed.send_signal(signal.SIGKILL)
        killed.wait(10)
    assert list(tmp_path.glob("wheels/*/*.whl")) == []
    assert list(tmp_path.glob("work/*/*.whl")) != []
    with build(root, tmp_path, "finish") as second:
        assert second.communicate(timeout=20)[0].startswith("building\n")
    assert len(list(tmp_path.glob("wheels/*/*.whl"))) == 1
    assert list(tmp_path.glob("work/*")) == []


def test_what_a_killed_process_left_is_removed_and_said_and_what_is_in_use_stays(
    tmp_path: Path, root: Path, facts: WheelFacts, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = WheelCache(tmp_path)
    (tmp_path / "work" / "torch-1234abcd").mkdir(parents=True)
    with build(root, tmp_path, "hang") as first, cache.work_folder("sdist") as used:
        assert first.stdout is not None
        assert first.stdout.readline() == "building\n"
        cache.sweep()
        assert capsys.readouterr().err == f"Removing what an unfinished build left: {tmp_path}/work/torch-1234abcd\n"
        assert used.exists()
        first.kill()
        first.wait(10)
        cache.sweep()
        assert list((tmp_path / "work").iterdir()) == [used]
    assert list((tmp_path / "work").iterdir()) == []
    assert [path.name for path in (tmp_path / "locks").iterdir() if "-" in path.name] == []


def test_a_wheel_of_other_facts_is_named_with_what_differs(tmp_path: Path, facts: WheelFacts) -> None:
    cache = WheelCache(tmp_path)
    assert cache.why_not(facts) is None
    cache.get_or_build(facts, write_wheel)
    cache.get_or_build(replace(facts, compiler="clang 15", libc="musl 1.2", mpi=None), write_wheel)
    assert cache.why_not(replace(facts, patch=2)) == "our changes to its source, version 1, now 2"
    assert cache.why_not(replace(facts, mpi=None)) == "mpi mpirun (Open MPI) 4.1.4, now none"
    assert cache.why_not(replace(facts, torch="2.12.0")) is None
    assert cache.why_not(replace(facts, tensorflow="2.15.1")) is None
    assert cache.why_not(replace(facts, tensorflow=None)) is None


def test_a_wheel_from_before_there_was_tensorflow_is_one_without_it(tmp_path: Path, facts: WheelFacts) -> None:
    cache, alone = WheelCache(tmp_path), replace(facts, tensorflow=None)
    beside = cache.get_or_build(alone, write_wheel).with_name("facts.json")
    had = json.loads(beside.read_text())
    del had["tensorflow"]
    beside.write_text(json.dumps(had))
    assert cache.why_not(replace(facts, patch=2)) is None
    assert cache.why_not(replace(alone, patch=2)) == "our changes to its source, version 1, now 2"


def test_a_second_process_says_that_it_waits_and_takes_the_first_ones_wheel(tmp_path: Path, root: Path) -> None:
    with build(root, tmp_path, "hang") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "building\n"
        with build(root, tmp_path, "finish") as second:
            assert second.stderr is not None
            assert "Another process is building" in second.stderr.readline()
            first_out, _ = first.communicate("", timeout=20)
            second_out, _ = second.communicate(timeout=20)
    assert second_out == first_out
    assert "building" not in second_out


@pytest.mark.parametrize(
    ("xdg", "place"),
    [("/somewhere", "/somewhere"), ("here", "{home}/.cache"), (None, "{home}/.cache")],
    ids=["absolute", "relative", "unset"],
)
def test_the_cache_follows_an_absolute_xdg_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, xdg: str | None, place: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = cache_directory({} if xdg is None else {"XDG_CACHE_HOME": xdg})
    assert found == Path(place.format(home=tmp_path)) / "hvd-elastic-ext"
