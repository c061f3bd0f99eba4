"""Runs of a job in one folder, one after the other."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from hvd_elastic_ext.report.command import main
from tests.integration.launcher.conftest import Launched

SCRIPT = """
import os, sys
if os.path.exists("bug"):
    sys.exit(3)
sys.stdout.write("well\\n")
"""


def names(launched: Launched) -> list[str]:
    return [record.get("run") for record in launched.events("started")]


def test_a_run_after_a_failed_one_waits_for_no_cooldown(launched: Launched, capsys: pytest.CaptureFixture[str]) -> None:
    (launched.directory / "script.py").write_text(SCRIPT)
    (launched.directory / "bug").touch()
    command = ["-np", 1, "-H", "localhost:1", "--blacklist-cooldown-range", 600, 600, "--failure-budget", 0]
    command += ["--state-dir", launched.directory / "state", sys.executable, "script.py"]
    with launched.run(*command, source=("--settle", "0")) as first:
        assert first.wait(100) == 1, first.output
    (launched.directory / "bug").unlink()
    begun = time.monotonic()
    with launched.run(*command, source=("--settle", "0")) as second:
        assert second.wait(100) == 0, second.output
    assert time.monotonic() - begun < 100.0  # the cooldown is 600 s
    one, other = names(launched)
    assert one < other
    capsys.readouterr()
    for options, run, code in (([], other, 0), (["--run", "1"], one, 1)):
        assert main([str(launched.journal), "--json", *options]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["run"], told["code"]) == (run, code)
        assert "started" not in [row["event"] for row in told["rows"]]


def test_a_launcher_after_a_killed_one_continues_its_run(
    launched: Launched,
) -> None:
    (launched.directory / "script.py").write_text("import time\ntime.sleep(600)\n")
    state = launched.directory / "state"
    command = ["-np", 1, "-H", "localhost:1", "--state-dir", state, "--orphan-grace", 5, sys.executable, "script.py"]
    with launched.run(*command, source=("--settle", "0")) as first:
        launched.wait_for("a state", lambda: launched.events("spawned") and Path(state, "state.json").exists())
        before = names(launched)
        with launched.run(*command, source=("--settle", "0")) as refused:
            assert refused.wait(60) == 2
            assert "is already in use" in refused.output
        assert names(launched) == before
        first.kill()
    with launched.run(*command, source=("--settle", "0")) as second:
        launched.wait_for("a second launcher", lambda: len(names(launched)) == 2)
        assert names(launched) == before * 2
        launched.wait_for("its agents", lambda: "looking for what it left running" in second.output)
        second.terminate()
        assert second.wait(60) == 143, second.output
    with launched.run(*command, source=("--settle", "0")) as third:
        launched.wait_for("a third launcher", lambda: len(names(launched)) == 3)
        assert names(launched)[2] not in before
        third.terminate()
        assert third.wait(60) == 143, third.output
