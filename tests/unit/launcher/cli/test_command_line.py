"""Mistakes on the command line of ``run``: the real one comes first, in two lines, with the nearest option."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import ElasticError, UsageError
from hvd_elastic_ext.launcher.cli.run_options import parse


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--checkpoint-evry 5 python s.py", "--checkpoint-evry is no option; did you mean --checkpoint-every?"),
        ("-np 2 --hostfil=h python s.py", None),  # argparse accepts a word that is the beginning of a single option
        ("--verbos --nonsense python s.py", "--nonsense is no option; did you mean"),
        ("-np x python s.py", "-np 'x': write a whole number, such as -np 2"),
        ("-np 2 --min-np one python s.py", "--min-np 'one': write a whole number, such as --min-np 2"),
        ("-np 2 --settle soon python s.py", "--settle 'soon': write a number, such as --settle 10"),
        ("--network-interfaces a --x python s.py", "--x is no option"),
        ("-np", "argument -np/--num-proc: expected one argument"),
        ("--discovery http://localhost:9 python s.py", "-np is missing"),
        ("-np 3 -H a:1,b:1 python s.py", "-np is 3, the hosts given have 2 in all"),
    ],
)
def test_a_mistake_is_told_in_at_most_two_lines(words: str, line: str | None) -> None:
    with pytest.raises(UsageError) as error:
        parse(words.split(), {})
    if line is not None:
        assert str(error.value).startswith(line)
    assert len(str(error.value).splitlines()) <= 2


def test_options_of_the_command_are_its_own() -> None:
    parsed = parse(["-np", "1", "-p2222", "--", "python", "s.py", "--nonsense", "-np", "x"], {})
    assert parsed.command == ("python", "s.py", "--nonsense", "-np", "x")


def test_without_np_all_slots_that_are_there_are_used(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a:2\nb:3\n")
    assert parse(["--hosts-file", str(hosts), "python", "s.py"], {}).num_proc == 5
    assert parse(["-H", "a:2,b:1", "python", "s.py"], {}).num_proc == 3
    assert parse(["python", "s.py"], {}).num_proc == 1


def test_where_the_number_of_processes_comes_from_is_known(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a:2\nb:3\n")
    words = ["--min-np", "1", "--hosts-file", str(hosts), "python", "s.py"]
    assert parse(words, {}).all_slots_of == f"hosts file {hosts}"
    assert parse(["-H", "a:2,b:1", "python", "s.py"], {}).all_slots_of == "the hosts given"
    assert parse(["--max-np", "4", *words], {}).all_slots_of == f"hosts file {hosts}"
    assert parse(["-np", "5", *words], {}).all_slots_of is None
    assert parse(["--min-np", "5", "--hosts-file", str(hosts), "python", "s.py"], {}).all_slots_of is None


def test_a_script_is_run_by_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    assert parse(["-np", "1", "train.py", "--lr", "1"], {}).command == (
        sys.executable,
        "train.py",
        "--lr",
        "1",
    )


def test_a_script_that_is_not_there_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"there is no trian.py in {tmp_path}; give the script's path"):
        parse(["-np", "1", "trian.py", "--lr", "1"], {})


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("pyhtno3 train.py", "pyhtno3 is no file in {}, and no program on PATH; did you mean python3?"),
        ("train", "train is no file in {}, and no program on PATH; did you mean train.py?"),
        ("--rsh local -H a:1,b:1 train", "train is no file in {}, and no program on PATH; did you mean train.py?"),
        ("--hosts-file here train", "train is no file in {}, and no program on PATH; did you mean train.py?"),
        ("--hosts-file elsewhere train", None),
        ("--hosts-file not-yet train", None),
        ("-H a:1 train", None),
        ("data", None),  # a file
        ("./tools/prepar", "there is no ./tools/prepar; did you mean tools/prepare?"),
        ("trian.py", "there is no trian.py in {}; did you mean train.py?"),
        ("zzzzzz", "zzzzzz is no file in {}, and no program on PATH; give a script, as in"),
    ],
)
def test_on_this_machine_a_command_that_is_not_there_is_refused_at_once_with_what_is_near(
    words: str, line: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "data", "tools/prepare", "bin/python3"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    Path("here").write_text("localhost:1\n127.0.0.1:1\n")
    Path("elsewhere").write_text("localhost:1\na:1\n")
    argv = ["-np", "1", *words.split()]
    if line is None:
        parse(argv, {})
        return
    with pytest.raises(UsageError) as error:
        parse(argv, {})
    assert str(error.value).startswith(line.format(tmp_path))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "does not exist; write it first: lines of host:slots"),
        ("a slots=2\n", "hosts:1: 'a slots=2' is a line"),
        ("# none yet\n", "hosts lists no host; write lines of HOST:SLOTS, or give -np to wait for them"),
    ],
)
def test_a_hosts_file_that_cannot_be_used_is_refused_at_once(
    text: str | None, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("hosts").write_text(text)
    with pytest.raises(ElasticError) as error:
        parse(["--hosts-file", "hosts", "true"], {})
    assert line in str(error.value)
