"""What is to be done, for each kind of event."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hvd_elastic_ext.core.events import EVENTS, RESIZES, EventKind
from hvd_elastic_ext.core.journal import read
from hvd_elastic_ext.dashboard.content import advice
from hvd_elastic_ext.dashboard.content.sentences import needs_attention
from hvd_elastic_ext.launcher.health.causes import BLAME, Cause, ending
from hvd_elastic_ext.report.job_report import Row, build_report
from tests.unit.launcher.scenarios import play

DOCS = Path(__file__).parents[4] / "docs"
FAULTS = [cause for cause in Cause if BLAME[cause].points_at != "none"]


@pytest.mark.parametrize("cause", FAULTS)
def test_every_fault_of_a_process_or_a_host_has_a_remedy_that_names_the_host(cause: Cause) -> None:
    told = advice.advice(Row(1.0, "struck", cause.value, ("h3",), note=cause.with_detail("so it was")))
    assert "h3" in told
    assert "{" not in told


@pytest.mark.parametrize("kind", [*EVENTS.values(), *RESIZES.values()], ids=lambda kind: kind.title)
def test_every_event_that_asks_for_a_look_has_a_remedy(kind: EventKind) -> None:
    row = Row(1.0, kind.title, "crashed: exit code 1", ("h3",))
    if kind.name in RESIZES:
        row = Row(1.0, "resized", kind.name, ("h3",), note="crashed: exit code 1")
    assert advice.advice(row) or not needs_attention(row) or kind.name == "finished"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("crashed: exit code 1: ModuleNotFoundError: No module named 'numpy'", "Install on h3"),
        (ending(-9).text, "Find out who killed it: the kernel's log on h3"),
        (ending(-9, oom=True).text, "Give h3 more memory"),
        (ending(-11).text, "A library crashed"),
        ("crashed: exit code 1: OSError: [Errno 28] No space left on device", "Make room on h3"),
        ("unreachable: ssh: connect to host h3 port 22: Connection refused", "`hvd-elastic doctor --host h3`"),
        ("crashed: exit code 1: MemoryError", "Give h3 more memory"),
        ("crashed: exit code 1: RuntimeError: can't allocate memory: you tried to allocate 9 bytes", "Give h3 more"),
        ("crashed: exit code 1: DataLoader worker (pid 7) is killed by signal: Bus error", "Enlarge /dev/shm on h3"),
        ("crashed: exit code 1: OSError: [Errno 24] Too many open files: '/dev/null'", "limit of open files on h3"),
        ("unreachable: h3: Permission denied (publickey,password).", "`ssh h3 true` must work by itself"),
        ("unreachable: ssh: Host key verification failed.", "known_hosts"),
        ("crashed: exit code 1: OSError: [Errno 98] Address already in use", "has this port on h3"),
        ("crashed: exit code 1: RuntimeError: No CUDA GPUs are available", "Compare the GPUs"),
        ("crashed: exit code 1: FileNotFoundError: [Errno 2] No such file or directory: '/data'", "Put the file"),
        ("crashed: exit code 1: PermissionError: [Errno 13] Permission denied: '/out'", "Let the job's user read"),
        (ending(2).text, "was not found on h3, or refuses its arguments"),
        (ending(3).text + ", in 3 starts without a step between", "It fails in the same way at each start"),
        (ending(2).text + ": ValueError: no", "Fix what the end of its output says"),
        (ending(3).text, "Fix what the end of its output says"),
    ],
)
def test_the_words_of_an_end_choose_the_remedy(reason: str, words: str) -> None:
    assert words in advice.advice(Row(1.0, "exited", "crashed", ("h3",), note=reason))
    assert words in advice.of_end(Row(1.0, "finished", f"rank 1 on h3[0] {reason}; 1 of 2 processes ended well"), None)


@pytest.mark.parametrize(
    "reason",
    [
        "slots needed: 2, published: 1 (a) after 600 s, --elastic-timeout",
        "no host in --elastic-timeout 8 s: the list of hosts is empty, or none has come",
    ],
)
def test_a_job_that_ends_for_want_of_hosts_needs_more_or_asks_for_less(reason: str) -> None:
    assert advice.of_end(Row(1.0, "finished", reason), None).startswith("Add hosts to the list, or ask for less")


def test_a_job_that_fails_for_no_fault_of_a_host_is_mended_by_its_reason() -> None:
    end = Row(1.0, "finished", "hosts:1: 'localhost slots=2' is a line for mpirun or --hostfile; write localhost:2")
    assert advice.of_end(end, None) == advice.AFTER_FAILURE


@pytest.mark.parametrize(
    ("scenario", "event", "words", "never"),
    [
        ("cut b; run 30", "fenced", "once its cooldown is over", "once it is heard"),
        ("lose_agent b; run 30", "worker failed", "See why its agent ended", "has a network"),
        ("stop b; run 30", "worker failed", "and was killed", "PID"),
        ("stop b; run 30", "fenced", "and was killed", "PID"),
        ("cut a b c; run 100", "isolated", "for --orphan-grace at most", "{"),
        ("misfit d Horovod 0.28; hosts a b c d; run 30", "struck", "`hvd-elastic doctor --host d`", "in its output"),
        ("boot d 99; hosts a b c d; run 60", "struck", "--standby-timeout S gives it longer", "doctor"),
        ("boot d 99; hosts a b c d; run 60", "exited", "--standby-timeout S gives it longer", "doctor"),
        ("stick b; run 60", "worker failed", "was killed to start again", "PID hangs"),
        ("stick b; run 60", "stalled", "See where that process on b hangs", "{"),
        ("notice b 30 spot; run 30", "notice", "Else add a host", "moves off in time"),
    ],
)
def test_what_is_told_of_a_fault_fits_what_the_launcher_has_done(
    scenario: str, event: str, words: str, never: str
) -> None:
    options = "standby_timeout_s=20.0 progress_timeout_s=5.0 restart_stalled=True"
    cluster = play(f"train a b c {options}; run 3; {scenario}")
    rows = build_report(list(read(cluster.journal.getvalue().splitlines()))).rows
    told = [advice.advice(row) for row in rows if row.title == event]
    assert told
    for each in told:
        assert words in each
        assert never not in each


@pytest.mark.parametrize(("event", "cause"), [("exited", "stalled"), ("struck", "stalled")])
def test_a_process_that_was_killed_for_a_stall_is_not_to_be_looked_at(event: str, cause: str) -> None:
    note = "killed by the launcher" if event == "exited" else "blocked for 10 s"
    assert "was killed to start again" in advice.advice(Row(1.0, event, cause, ("h3",), note=note))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            "rank 1 (b[0]) has finished training, and 2 ranks have waited for it for 15 s: "
            "do all ranks do the same number of steps?",
            "Give all ranks equally many steps",
        ),
        ("all 3 ranks have waited for one another for 60 s", "See what each rank waits for"),
    ],
)
def test_a_stall_that_no_single_process_causes_names_no_host_and_no_restart(reason: str, words: str) -> None:
    told = advice.advice(Row(1.0, "stalled", reason))
    assert words in told
    assert "that host" not in told
    assert "--restart-stalled" not in told


@pytest.mark.parametrize("name", ["h3; rm -rf ~", "`id`", "$(id)", "h3\n", "<img src=x>", ""])
def test_a_command_to_paste_holds_no_host_that_is_no_name(name: str) -> None:
    assert "`hvd-elastic hosts clear HOST`" in advice.advice(Row(1.0, "blocked", "by hand", (name,)))


def test_the_host_of_a_seat_is_meant() -> None:
    assert "that process on h3 hangs" in advice.advice(Row(1.0, "stalled", "no progress for 9 s of rank 1", ("h3[0]",)))


def test_commands_and_options_that_a_remedy_names_are_there() -> None:
    remedies = [remedy for kind in (*EVENTS.values(), *RESIZES.values()) for _, remedy in kind.remedies]
    whole = " ".join([*remedies, advice.AFTER_FAILURE, advice.NO_LAUNCHER])
    pages = " ".join(page.read_text() for page in DOCS.glob("*.md"))
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", whole)):
        assert option in pages, option
    for command in set(re.findall(r"hvd-elastic ([a-z]+(?: [a-z]+)?)", whole)):
        assert f"hvd-elastic {command}" in pages, command
