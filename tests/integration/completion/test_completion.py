"""What a shell offers at a key, with the script of ``hvd-elastic completion``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_elastic_ext import cli

OFFERS = {
    "bash": (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$((${#}-1)); _hvd_elastic; printf "%s\n" "${COMPREPLY[@]}"'
    ),
    # As zsh's own bashcompinit calls a function of bash.
    "zsh": (
        'autoload -U compinit && compinit -u -D; source "$1"; shift; COMP_WORDS=("$@"); '
        'COMP_CWORD=$((${#}-1)); _hvd_elastic; printf "%s\\n" "${COMPREPLY[@]}"'
    ),
    "fish": 'source $argv[1]; complete -C (string join -- " " $argv[2..])',
}


@pytest.fixture(scope="module", params=OFFERS)
def shell(request: pytest.FixtureRequest) -> str:
    if shutil.which(request.param) is None:
        pytest.skip(f"needs {request.param}")
    return str(request.param)


@pytest.fixture
def offered(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    lists = tmp_path / "bin" / "hvd-elastic"
    lists.parent.mkdir()
    lists.write_text("#!/bin/sh\necho mpijob/digits\n")
    lists.chmod(0o755)
    (tmp_path / "kubeconfig").touch()

    def offer(*words: str) -> list[str]:
        beside = ["-c", OFFERS[shell], *(["shell"] * (shell != "fish")), str(script), "hvd-elastic", *words]
        env = {**os.environ, "HOME": str(tmp_path), "PATH": f"{lists.parent}:{os.environ['PATH']}"}
        ended = subprocess.run(
            [shell, *beside], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert not ended.stderr, ended.stderr
        found = [line.partition("\t")[0] for line in ended.stdout.splitlines() if line]
        return [each for each in found if each.startswith(words[-1])]  # zsh does this later

    return offer


def test_commands_and_subcommands_are_offered(offered) -> None:
    assert set(offered("")) >= set(cli.COMMANDS)
    assert offered("sub") == ["submit"]
    assert set(offered("hosts", "c")) == {"clear"}


def test_options_and_their_values_are_offered(offered) -> None:
    assert "--max-workers" in offered("submit", "digits", "--max-w")
    assert set(offered("get", "-o", "")) == {"wide", "json", "yaml", "name"}
    assert set(offered("wait", "digits", "--for", "su")) == {"succeeded", "suspended"}
    assert "--for" in offered("hosts", "block", "--f")
    assert offered("run", "--job-b") == ["--job-backoff-limit"]
    assert {"--plot", "--kubeconfig"} <= {*offered("events", "--p"), *offered("events", "--k")}


def test_names_of_jobs_and_of_files_are_offered(offered) -> None:
    assert offered("logs", "") == ["digits"] or "digits" in offered("logs", "d")
    assert offered("logs", "--kubeconfig", "kubec") == ["kubeconfig"]


def test_a_shell_that_is_not_known_is_refused() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "hvd_elastic_ext.cli", "completion", "csh"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "choose from" in ended.stderr


def test_a_name_of_a_job_is_not_run(offered, tmp_path: Path) -> None:
    (tmp_path / "bin" / "hvd-elastic").write_text("#!/bin/sh\necho 'mpijob/$(touch run)'\necho mpijob/digits\n")
    offered("get", "")
    assert not (tmp_path / "run").exists()
