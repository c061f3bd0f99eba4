"""Mistakes on the command line of ``run``: the real one comes first, in two lines, with the nearest option."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import ElasticError, UsageError
from hvd_elastic_ext.launcher.cli import starting
from hvd_elastic_ext.launcher.cli.run_options import make_parser, parse, split


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--checkpoint-evry 5 python s.py", "--checkpoint-evry … --checkpoint-every?"),
        ("-np 2 --hostfil=h python s.py", "--hostfil … --hostfile?"),
        ("-np 2 -hostfil h python s.py", "-hostfil … -hostfile?"),
        ("-n 2 python s.py", "-n … -np?"),
        ("--verbos --nonsense python s.py", "--verbos … --verbose?"),
        (
            "--checkpoint x python s.py",
            "--checkpoint … --checkpoint-dir, --checkpoint-every or --checkpoint-keep?",
        ),
        ("-np x python s.py", "-np 'x': write a whole number, such as -np 2"),
        ("-np 2 --min-np one python s.py", "--min-np 'one': write a whole number, such as --min-np 2"),
        ("-np 2 --settle soon python s.py", "--settle 'soon': write a time, such as --settle 30s, 10m or 1h30m"),
        ("--network-interfaces a --x python s.py", "--x is not an option"),
        ("-np", "argument -np/--num-proc: expected one argument"),
        ("--discovery http://localhost:9 python s.py", "-np is missing"),
        ("-np 3 -H a:1,b:1 python s.py", "-np is 3, the hosts given have 2 in all"),
    ],
)
def test_a_mistake_is_told_in_at_most_two_lines(words: str, line: str | None) -> None:
    with pytest.raises(UsageError) as error:
        parse(words.split(), {})
    if line is not None:
        assert re.match(".*".join(map(re.escape, line.split("…"))), str(error.value)), error.value
    assert len(str(error.value).splitlines()) <= 2


BEGINNINGS = (
    *("--auto", "--checkpoint", "--commit", "--discover", "--heart", "--host", "--log"),
    *("--max", "--min", "--network", "--no", "--num", "--sleep", "--wake"),
)
"""Each begins several options of ``run``."""


@pytest.mark.parametrize("word", BEGINNINGS)
@pytest.mark.parametrize("before", ["python s.py", "s.py", "python -m pkg", "-- python s.py"])
def test_nothing_after_the_program_is_an_option_of_the_launcher(word: str, before: str, tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.touch()
    words = [str(script) if each == "s.py" else each for each in before.split()]
    command = [each for each in words if each != "--"]
    for given in ([word, "m.pt"], [f"{word}=3"], ["-np", "x", "--nonsense", "--", "--help"]):
        parsed = parse(["-np", "1", *words, *given], {})
        assert parsed.command[-len(command + given) :] == (*command, *given)
        assert parsed.options.limits.start == 1


@pytest.mark.parametrize(
    ("words", "options", "command"),
    [
        ("-np 2 python -m pkg --np 3", "-np 2", "python -m pkg --np 3"),
        ("-np 1 --verbose s.py -- --x", "-np 1 --verbose", "s.py -- --x"),
        ("--config f.yaml s.py --config c.yaml", "--config f.yaml", "s.py --config c.yaml"),
        ("--job=j --settle=2m s.py --job=k", "--job=j --settle=2m", "s.py --job=k"),
        ("--blacklist-cooldown-range 1 2 s.py 3 4", "--blacklist-cooldown-range 1 2", "s.py 3 4"),
        ("-np 2 -H a:1,b:1 -p22 s.py -p 23", "-np 2 -H a:1,b:1 -p22", "s.py -p 23"),
        ("-Ha:1 -q s.py -q", "-Ha:1 -q", "s.py -q"),
        ("-qp22 s.py", "-qp22", "s.py"),
        ("-np 1 A=1 B= s.py C=2 --x D=3", "-np 1", "A=1 B= s.py C=2 --x D=3"),
        ("--reset-limit -1 s.py", "--reset-limit -1", "s.py"),
        ("-np 1 -- -odd --x", "-np 1", "-odd --x"),
        ("-np 1 -- -- s.py", "-np 1", "-- s.py"),
        ("--adopt", "--adopt", ""),
        ("-np 1 --help s.py --checkpoint", "-np 1 --help", ""),
        ("", "", ""),
    ],
)
def test_options_end_where_the_program_begins(words: str, options: str, command: str) -> None:
    assert split(words.split()) == (tuple(options.split()), tuple(command.split()))


def test_options_of_the_command_are_its_own() -> None:
    parsed = parse(["-np", "1", "-p2222", "--", "python", "s.py", "--nonsense", "-np", "x"], {})
    assert parsed.command == ("python", "s.py", "--nonsense", "-np", "x")


def test_layers_and_messages_are_not_moved_by_options_of_the_command(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("observe: [queue=file:q]\nautoscale: threshold:queue=3\nmax-np: 3\n")
    hosts = ["--discovery", "http://localhost:9", "-np", "1", "--config", str(config)]
    parsed = parse([*hosts, "python", "s.py", "--observe", "x=file:y", "--config", "other.yaml"], {})
    assert parsed.observe == ("queue=file:q",)
    with pytest.raises(UsageError, match=r"^--min-np 3 is more than -np 2"):
        parse(["-np", "2", "--min-np", "3", "python", "s.py", "--num-proc", "1", "--min-num-proc", "1"], {})


def test_variables_before_the_program_are_those_of_its_processes(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.touch()
    parsed = parse(["-np", "2", "-H", "localhost:2", "FOO=1", "B_2=a=b c", str(script), "BAR=2"], {})
    assert parsed.command[1:] == (str(script), "BAR=2")
    assert dict(parsed.variables) == {"FOO": "1", "B_2": "a=b c"}
    assert parsed.job == "show"
    assert dict(parse(["-np", "1", "--", "FOO=1", "true"], {}).variables) == {"FOO": "1"}
    with pytest.raises(UsageError, match="no command was given"):
        parse(["-np", "1", "FOO=1"], {})
    with pytest.raises(UsageError, match=r"^HOROVOD_AUTOTUNE=1 "):
        parse(["-np", "1", "HOROVOD_AUTOTUNE=1", "true"], {})


def test_a_command_with_other_variables_is_another_one_for_its_checkpoints() -> None:
    def mark(*words: str) -> str:
        durability = parse(["-np", "1", "--checkpoint-every", "5", *words, "true"], {}).options.durability
        assert durability is not None
        return durability.mark

    assert mark() == mark()
    assert len({mark(), mark("EPOCHS=4"), mark("EPOCHS=9")}) == 3


def test_the_launcher_is_quiet_only_if_its_own_options_say_so() -> None:
    switches = {name for name, option in make_parser()._option_string_actions.items() if option.nargs == 0}
    assert switches == starting.SWITCHES
    assert starting.quiet(["-np", "2", "--adopt", "-q", "s.py"])
    assert not starting.quiet(["-np", "2", "--adopt", "s.py", "-q"])
    assert not starting.quiet(["-np", "2", "--", "-q"])
    assert not starting.quiet(["--job=-q", "-np", "2", "s.py", "--quiet"])


def test_without_np_all_slots_that_are_there_are_used(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a:2\nb:3\n")
    assert parse(["--hosts-file", str(hosts), "python", "s.py"], {}).options.limits.start == 5
    assert parse(["-H", "a:2,b:1", "python", "s.py"], {}).options.limits.start == 3
    assert parse(["python", "s.py"], {}).options.limits.start == 1


def test_where_the_number_of_processes_comes_from_is_known(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a:2\nb:3\n")
    words = ["--min-np", "1", "--hosts-file", str(hosts), "python", "s.py"]
    assert parse(words, {}).options.all_slots_of == f"hosts file {hosts}"
    assert parse(["-H", "a:2,b:1", "python", "s.py"], {}).options.all_slots_of == "the hosts given"
    assert parse(["--max-np", "4", *words], {}).options.all_slots_of == f"hosts file {hosts}"
    assert parse(["-np", "5", *words], {}).options.all_slots_of is None
    assert parse(["--min-np", "5", "--hosts-file", str(hosts), "python", "s.py"], {}).options.all_slots_of is None


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
        ("pyhtno3 train.py", "pyhtno3 is not a file in {}, nor a program on PATH; did you mean python3?"),
        ("train", "train is not a file in {}, nor a program on PATH; did you mean train.py?"),
        ("--rsh local -H a:1,b:1 train", "train is not a file in {}, nor a program on PATH; did you mean train.py?"),
        ("--hosts-file here train", "train is not a file in {}, nor a program on PATH; did you mean train.py?"),
        ("--hosts-file elsewhere train", None),
        ("--hosts-file not-yet train", None),
        ("-H a:1 train", None),
        ("data", None),  # a file
        ("./tools/prepar", "there is no ./tools/prepar; did you mean tools/prepare?"),
        ("trian.py", "there is no trian.py in {}; did you mean train.py?"),
        ("zzzzzz", "zzzzzz is not a file in {}, nor a program on PATH; give a script, as in"),
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
