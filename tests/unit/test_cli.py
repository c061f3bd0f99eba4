"""``hvd-elastic``: a user's mistake is two lines at most, whatever the command; never a traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.cli import status

# Root may read everything, unless its process has given that up.
AS_ANYBODY = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("evnts", "hvd-elastic: there is no command 'evnts'; did you mean events?"),
        ("rnu train.py", "hvd-elastic: there is no command 'rnu'; did you mean run?"),
        ("--hepl", "hvd-elastic: there is no command '--hepl'; did you mean --help?"),
        ("events --plto x", "hvd-elastic events: --plto … --plot?"),
        ("events --replay x --stte", "hvd-elastic events: --stte … --state?"),
        ("checkpoints lst", "hvd-elastic checkpoints: there is no command 'lst'; did you mean list?"),
        ("checkpoints export --tto x", "hvd-elastic checkpoints: --tto … --to?"),
        ("hosts block", "hvd-elastic hosts: HOST is missing"),
        ("hosts block a NAME", "hvd-elastic hosts: 'NAME' is one word too many; a job is named with --job NAME"),
        ("hosts lits", "hvd-elastic hosts: there is no command 'lits'; did you mean list?"),
        (
            "checkpoints prune d --keep 1",
            "hvd-elastic checkpoints: --keep is an option of `hvd-elastic run`; here it is --last N",
        ),
        ("status --state-dri x", "hvd-elastic status: --state-dri … --state-dir?"),
        ("doctor --lcal", "hvd-elastic doctor: --lcal … --local?"),
        ("manifest --hlep", "hvd-elastic manifest: --hlep … --help?"),
        ("demo --sed 3", "hvd-elastic demo: --sed … --seed?"),
        ("run --journl x true", "hvd-elastic run: --journl … --journal?"),
    ],
)
def test_every_command_tells_a_mistake_in_two_lines(words: str, line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words.split()) == 2
    first, second = capfd.readouterr().err.splitlines()
    assert re.fullmatch(".*".join(map(re.escape, line.split("…"))), first), first
    assert "--help` lists all" in second


@pytest.mark.parametrize("name", ["train.py", "./train.py", "python3"])
def test_a_script_without_run_before_it_is_told_with_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert cli.main([name, "--lr", "1"]) == 2
    assert capfd.readouterr().err.splitlines()[0] == (
        f"hvd-elastic: there is no command '{name}'; to run it, write: hvd-elastic run {name}"
    )


def test_a_script_that_is_not_there_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train.py"]) == 2
    assert "there is no command 'train.py'; there are run, " in capfd.readouterr().err


def test_help_has_two_groups_local_and_cluster(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capfd.readouterr().out
    local, _, cluster = text.partition("\nlocal jobs:\n")[2].partition("\n\njobs on a cluster:\n")
    first = {line.split()[0] for line in local.splitlines()}
    second = {line.split()[0] for line in cluster.partition("\n\n")[0].splitlines()}
    assert {"run", "status", "simulate"} <= first
    assert {"submit", "get", "attach"} <= second
    assert first | second == set(cli.COMMANDS)
    assert "\nWith -n NAMESPACE, events, logs and scale act on a job on a cluster.\n" in text
    assert {command.group for command in cli.COMMANDS.values()} == set(cli.GROUPS)


def test_build_horovod_tells_a_mistake_in_two_lines(tmp_path: Path) -> None:
    done = run("build-horovod", "--tocrh", "2", cwd=tmp_path)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first == "hvd-elastic build-horovod: --tocrh is not an option; did you mean --torch?"
    assert second == "`hvd-elastic build-horovod --help` lists all options"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("checkpoints list job", "job/journal.jsonl: cannot be read: it is a folder, not a regular file; name a job"),
        ("events " + "x" * 300, "File name too long; check that the path is right"),
        ("run -np 1 --config job true", "--config job cannot be read: it is a folder, not a regular file; name a"),
        ("run -np 1 --output-filename f/x true", "f/x cannot be written: Not a directory; name ano"),
        (
            "run -np 1 --output-filename f true",
            "f cannot be written: it is not a folder; name an",
        ),
        ("run --hosts-file job true", "--hosts-file job is a directory; name a text file of host:slots lines\n"),
        ("run --hosts-file f/x true", "--hosts-file f/x not a directory; give a text file of host:slots lines\n"),
        ("run --hosts-file none true", "--hosts-file none does not exist; write it first: lines of host:slots\n"),
        (
            "doctor --hosts-file job",
            "--hosts-file job cannot be read: it is a folder, not a regular file; name",
        ),
    ],
)
def test_a_path_that_cannot_be_used_is_one_line(
    words: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job" / "journal.jsonl").mkdir(parents=True)
    (tmp_path / "f").touch()
    assert cli.main(words.split()) in (1, 2)
    told = capfd.readouterr().err
    assert line in told
    assert told.count("\n") == 1


def test_a_journal_that_may_not_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch(mode=0)
    done = run("checkpoints", "list", str(tmp_path), cwd=tmp_path, wrap=AS_ANYBODY)
    assert "Permission denied; name a job" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--help"], ["manifest", "rbac"]])
def test_a_reader_that_went_away_ends_a_command_silently(words: list[str], unbuffered: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        done = run(*words, cwd=tmp_path, stdout=gone, unbuffered=unbuffered)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("words", ["doctor --local", "demo --quick --plain"])
def test_a_current_folder_that_is_gone_is_one_line(words: str, tmp_path: Path) -> None:
    line = f'mkdir x; cd x; rmdir ../x; exec "$0" -m hvd_elastic_ext.cli {words}'
    done = run_sh(line, cwd=tmp_path)
    name = words.split()[0]
    assert done.stderr == f"hvd-elastic {name}: the current folder has been removed; cd to another one\n"
    assert done.returncode == 1


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = run("manifest", "rbac", cwd=tmp_path, stdout=full, unbuffered="")
    assert done.stderr == "hvd-elastic manifest: no space is left where the output goes\n"
    assert done.returncode == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("module", ["hvd_elastic_ext.cli --version", "discover.cli --source static --hosts a:1 --once"])
def test_a_closed_standard_stream_is_as_the_null_device(module: str, closed: str, tmp_path: Path) -> None:
    done = run_sh(f'exec "$0" -m {module} {closed}', cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (">&- " not in f"{closed} ".replace("2>&-", ""))


def test_a_job_is_named_by_one_word_for_hosts_list_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / ".hvd-elastic" / name).mkdir(parents=True, mode=0o700)
    assert cli.main(["hosts", "list", "one"]) == 0
    assert "no host is blocked" in capfd.readouterr().out
    assert cli.main(["hosts", "list", "none"]) == 2
    assert "there is no job none in ./.hvd-elastic; did you mean one?" in capfd.readouterr().err
    assert cli.main(["hosts", "list", "one", "--job", "two"]) == 2
    assert "'one' and --job 'two' are two jobs; name one" in capfd.readouterr().err


def test_a_job_that_fails_with_a_traceback_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def failing(_: object) -> int:
        raise JobFailed("the training script fails: ValueError: bad\nTraceback (most recent call last):\n  File")

    monkeypatch.setattr(status, "main", failing)
    assert cli.main(["status"]) == 1
    assert capfd.readouterr().err == (
        "hvd-elastic status: the training script fails: ValueError: bad; "
        "its traceback is above, in the output of the process\n"
    )


def run(
    *words: str, cwd: Path, stdout: object = subprocess.PIPE, unbuffered: str = "1", wrap: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [*wrap, sys.executable, "-m", "hvd_elastic_ext.cli", *words]
    done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        command, cwd=cwd, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=60, env=environ
    )
    return _without_slow_start(done)


def run_sh(line: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of sh; $0 is this Python."""
    environ = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    command = ["sh", "-c", line, sys.executable]
    return _without_slow_start(
        subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=60, env=environ)
    )


def _without_slow_start(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    lines = done.stderr.splitlines(keepends=True)  # on a busy machine one more tells that modules are loaded
    done.stderr = "".join(line for line in lines if "starting for" not in line)
    return done


@pytest.mark.parametrize("words", [["logs", "digits"], ["logs", "digits", "-f", "--tail", "3"]])
def test_logs_of_a_name_that_is_not_here_says_that_it_was_looked_for_in_both_places(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Defect: only the cluster was looked at."""
    monkeypatch.chdir(tmp_path)
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.main(words) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "no job digits was started in this folder (./.hvd-elastic); looked for on a cluster, too: " in line
    assert line.endswith("-n NAMESPACE names its namespace")
    assert cli.main([*words, "-n", "ml"]) == 2
    assert "this folder" not in capfd.readouterr().err


def test_logs_of_a_job_that_was_started_here_asks_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".hvd-elastic" / "digits").mkdir(parents=True, mode=0o700)
    assert cli.main(["logs", "digits"]) == 2
    assert "no job has begun with this journal" in capfd.readouterr().err


def test_commands_end_quietly_when_their_reader_goes(tmp_path: Path) -> None:
    """Only the exit code of SIGPIPE tells."""
    folder = tmp_path / ".hvd-elastic" / "digits"
    folder.mkdir(parents=True, mode=0o700)
    (tmp_path / "out" / "rank.0").mkdir(parents=True)
    (tmp_path / "out" / "rank.0" / "stdout").write_text("line\n" * 100_000)
    started = f'{{"t": 1, "mono": 1, "generation": 0, "event": "started", "job": "digits", "output": "{tmp_path}/out"}}'
    (folder / "journal.jsonl").write_text(started + "\n")
    for words in ("logs digits", "logs digits -f"):
        command = f"{sys.executable} -m hvd_elastic_ext.cli {words} | head -1; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (141, "[0]<stdout>:line\n", "")


def test_the_commands_for_a_job_here_are_completed_with_their_options() -> None:
    found = {
        name: {each for option in cli._completed(name).options for each in option.names}
        for name in ("stop", "status", "logs")
    }
    assert {"--job", "--state-dir"} <= found["stop"]
    assert not {"-n", "--kubeconfig"} & found["stop"], "stop is not for a cluster"
    assert {"--json", "--watch"} <= found["status"]
    assert {"--follow", "--rank", "--all-runs", "--previous", "--namespace"} <= found["logs"]


def test_events_of_a_job_that_is_not_here_says_how_to_name_one_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["events", "digits"]) == 2
    assert capfd.readouterr().err.endswith("; for a job on a cluster give -n NAMESPACE\n")
