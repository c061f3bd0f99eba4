"""``hvd-elastic stop``, ``status --watch`` and ``logs -f`` beside a real job: all end with it."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from tests.integration.launcher.conftest import COUNTER, ELASTIC, Ask, Launched
from tests.support.processes import run_process


def test_a_job_is_stopped_with_a_last_checkpoint_and_all_that_watch_it_end(launched: Launched, ask: Ask) -> None:
    launched.set_hosts("localhost:1")
    options = ("--job", "digits", "--checkpoint-every", "notice", "--output-filename", launched.directory / "out")
    with launched.run(*options, "-np", "1", sys.executable, COUNTER) as process:
        launched.wait_for_steps(1, timeout=90)
        watching = [*ELASTIC, "status", "digits", "--watch"]
        with (
            run_process(watching, cwd=launched.directory) as watch,
            run_process([*ELASTIC, "logs", "digits", "-f"], cwd=launched.directory) as logs,
        ):
            watch.wait_for("world 1, size 1")
            seen = json.loads(ask("status", "digits", "--json").out)
            assert (seen["running"], seen["state"], seen["size"]) == (True, "trains", 1)
            assert seen["launcher"]["pid"] == process.pid
            assert seen["journal"] == str(launched.journal)
            done = ask("stop", "digits")
            assert (done.code, done.err) == (0, ""), process.output
            assert process.wait(30) == 130
            assert watch.wait(30) == 130, watch.output
            assert logs.wait(30) == 0, logs.output
    first, *_, ended, again = done.out.splitlines()  # between them, how long it lasts
    assert first.startswith("digits: the job makes a last checkpoint, in 60 s at most; ")
    assert ended.startswith("digits has ended with exit code 130: ")
    assert again.startswith(f"to go on: cd {launched.directory} && hvd-elastic run --hosts-file ")
    (sealed,) = launched.events("sealed")
    assert Path(sealed.get("path")).is_dir()
    assert sealed.get("path") in ended
    refused = ask("stop", "digits")
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert launched.events("finished")[-1].get("reason") in refused.err


def test_a_launcher_that_is_stopped_itself_is_not_ended_and_the_remedy_is_named(launched: Launched, ask: Ask) -> None:
    launched.set_hosts("localhost:1")
    with launched.run("--job", "digits", "-np", "1", "sleep", "600") as process:
        launched.wait_for("a process", lambda: launched.events("spawned"))
        process.send_signal(signal.SIGSTOP)
        done = ask("stop", "digits")
        process.send_signal(signal.SIGCONT)
        assert done.code == 1
        assert f"is stopped (T): `kill -CONT {process.pid}` lets it go on" in done.err
        assert process.returncode is None
        assert ask("stop", "digits").code == 0
        assert process.wait(30) == 130
