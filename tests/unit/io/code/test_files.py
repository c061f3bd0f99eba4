"""Which files of a folder are code, where the folder may be anybody's: git runs nothing of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.code.files import code_of, names_of
from hvd_elastic_ext.jobs.cluster.making import commit_of
from hvd_elastic_ext.jobs.spec.source import Revision

WHO = {f"GIT_{role}_{part}": "x@example.com" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without any configuration of git."""
    made = tmp_path / "home"
    made.mkdir()
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    return made


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, env={**os.environ, **WHO}
    )
    return done.stdout


def repository(folder: Path, *words: str) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", *words)
    (folder / "train.py").write_text("x = 1\n")
    (folder / ".gitignore").write_text("*.log\n.env\n")
    (folder / ".env").write_text("PASSWORD=x\n")
    return folder


def plant(folder: Path, program: Path) -> None:
    """Name the program wherever a repository may name one."""
    keys = {
        "core": ("fsmonitor", "sshCommand", "pager", "editor", "askPass", "gitProxy", "alternateRefsCommand"),
        "diff": ("external",),
        'diff "x"': ("command", "textconv"),
        'filter "x"': ("clean", "smudge", "process"),
        'merge "x"': ("driver",),
        'remote "origin"': ("uploadpack", "receivepack", "vcs"),
        "alias": ("ls-files", "config", "ls-remote"),
        "pager": ("ls-files", "config", "ls-remote"),
        "credential": ("helper",),
        "uploadpack": ("packObjectsHook",),
        "interactive": ("diffFilter",),
        "gpg": ("program",),
        "sequence": ("editor",),
    }
    lines = [f"[{section}]\n" + "".join(f"  {key} = {program}\n" for key in found) for section, found in keys.items()]
    lines += [f"[core]\n  hooksPath = {program.parent}\n  untrackedCache = true\n  worktree = /etc\n"]
    lines += ["[submodule]\n  recurse = true\n[extensions]\n  worktreeConfig = true\n  partialClone = origin\n"]
    lines += [f"[include]\n  path = {folder}/more\n[protocol]\n  allow = always\n[safe]\n  directory = *\n"]
    lines += [f'[url "ext::{program} "]\n  insteadOf = http://\n  insteadOf = file://\n']
    with (folder / ".git" / "config").open("a") as file:
        file.write("".join(lines))
    (folder / "more").write_text(f"[core]\n  fsmonitor = {program}\n")
    (folder / ".git" / "config.worktree").write_text(f"[core]\n  fsmonitor = {program}\n")
    (folder / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
    for hook in ("post-index-change", "fsmonitor-watchman", "pre-auto-gc", "reference-transaction"):
        for place in (folder / ".git" / "hooks", program.parent):
            place.mkdir(exist_ok=True)
            (place / hook).unlink(missing_ok=True)
            (place / hook).symlink_to(program)


@pytest.fixture
def planted(tmp_path: Path) -> tuple[Path, Callable[[], bool]]:
    """A repository that names a program everywhere, and whether that program ran."""
    folder, marker, program = repository(tmp_path / "planted"), tmp_path / "ran", tmp_path / "programs" / "program"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    plant(folder, program)
    return folder, marker.exists


def test_nothing_that_a_folder_names_is_run_to_list_its_files(planted: tuple[Path, Callable[[], bool]]) -> None:
    folder, ran = planted
    expected = [".gitattributes", ".gitignore", "more", "train.py"]
    assert names_of("--sync", folder) == expected
    assert code_of("--code", folder).sha256
    assert not ran()
    subprocess.run(["git", "-C", str(folder), "status"], capture_output=True, check=False)
    assert ran()  # the trap works


def test_nothing_that_the_present_folder_names_is_run_to_resolve_a_revision(
    planted: tuple[Path, Callable[[], bool]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ran = planted
    source = repository(tmp_path / "source", "-b", "main")
    git(source, "add", ".")
    git(source, "commit", "-q", "-m", "first")
    monkeypatch.chdir(folder)
    wanted = Revision(f"file://{source}", "main")
    assert commit_of(wanted).revision == git(source, "rev-parse", "HEAD").strip()
    assert not ran()


def test_without_git_a_folder_with_rules_of_what_is_ignored_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, rules, plain = repository(tmp_path / "known"), tmp_path / "rules", tmp_path / "plain"
    (rules / "deep").mkdir(parents=True)
    (rules / "deep" / ".gitignore").write_text(".env\n")
    plain.mkdir()
    (plain / "train.py").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    for folder in (known, rules):
        with pytest.raises(UsageError) as refused:
            names_of("--sync", folder)
        assert str(refused.value) == (
            f"--sync {folder}: git is not installed, and it knows what .gitignore leaves out; install git, or name a "
            "copy of the folder without .gitignore and .git"
        )
    assert names_of("--sync", plain) == ["train.py"]


def test_what_gitignore_names_stays_here_also_outside_of_a_repository(tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    (folder / "deep" / "__pycache__").mkdir(parents=True)
    (folder / ".gitignore").write_text(".env\n")
    (folder / "deep" / ".gitignore").write_text("*.bin\n")
    for name in (".env", "train.py", "deep/a.bin", "deep/b.py", "deep/__pycache__/b.pyc"):
        (folder / name).touch()
    assert names_of("--sync", folder) == [".gitignore", "deep/.gitignore", "deep/b.py", "train.py"]


@pytest.mark.parametrize("where", ["of the repository", "of a worktree", "of the user", "in its default place"])
def test_files_that_more_rules_ignore_stay_here(tmp_path: Path, home: Path, where: str) -> None:
    folder = repository(tmp_path / "a")
    rules = tmp_path / "rules"
    if where == "of the repository":
        git(folder, "config", "core.excludesFile", str(rules))
    elif where == "of a worktree":
        git(folder, "config", "extensions.worktreeConfig", "true")
        git(folder, "config", "--worktree", "core.excludesFile", str(rules))
    elif where == "of the user":
        (home / ".gitconfig").write_text("[core]\n  excludesFile = ~/../rules\n")
    else:
        rules = home / ".config" / "git" / "ignore"
        rules.parent.mkdir(parents=True)
    rules.write_text("secret\n")
    (folder / ".git" / "info" / "exclude").write_text("private\n")
    for name in ("secret", "private"):
        (folder / name).touch()
    assert names_of("--sync", folder) == [".gitignore", "train.py"]


@pytest.mark.parametrize("kind", ["a subfolder", "sha256", "a split index", "another worktree", "a sparse index"])
def test_every_kind_of_repository_is_read(tmp_path: Path, kind: str) -> None:
    folder = repository(tmp_path / "a", *(["--object-format=sha256"] if kind == "sha256" else []))
    for part in ("b", "c"):
        (folder / part).mkdir()
        (folder / part / "part.py").touch()
    (folder / "forced.log").touch()
    git(folder, "add", ".")
    git(folder, "add", "-f", "forced.log")
    git(folder, "commit", "-q", "-m", "first")
    expected = [".gitignore", "b/part.py", "c/part.py", "forced.log", "train.py"]
    if kind == "a split index":
        git(folder, "update-index", "--split-index")
        (folder / "later.py").touch()
        git(folder, "add", "later.py")
        expected = sorted([*expected, "later.py"])
    elif kind == "a sparse index":
        git(folder, "sparse-checkout", "set", "--cone", "--sparse-index", "b")
        expected.remove("c/part.py")
    elif kind == "another worktree":
        git(folder, "worktree", "add", "-q", str(tmp_path / "w"))
        folder = tmp_path / "w"
        (folder / ".env").touch()
    elif kind == "a subfolder":
        folder, expected = folder / "b", ["part.py"]
        (folder / "a.log").touch()
    assert names_of("--sync", folder) == expected


@pytest.mark.parametrize("name", ["index", "config"])
def test_a_pipe_within_a_repository_is_refused_at_once(tmp_path: Path, name: str) -> None:
    folder = repository(tmp_path / "a")
    (folder / ".git" / name).unlink(missing_ok=True)
    os.mkfifo(folder / ".git" / name)
    with pytest.raises(UsageError, match=f"git does not say what is ignored: .*/{name} is not a regular file"):
        names_of("--sync", folder)
