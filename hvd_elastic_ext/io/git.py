"""Runs git so that no folder decides what it does; every git command of ours runs through :func:`run`.

The configuration of a folder may name programs (``core.fsmonitor``, ``core.sshCommand``, filters, hooks, pagers), and a
folder may be unpacked from anywhere. So git gets a repository of ours with an empty configuration, beside which the
folder is only a worktree and an index. What a folder's configuration says about files is read as text.
"""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

TIMEOUT_S: Final = 60.0
"""Longest time of one command."""
_OURS: Final = (
    "GIT_ASKPASS", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM", "GIT_PROXY_COMMAND", "GIT_SSH",
    "GIT_SSH_COMMAND", "GIT_SSH_VARIANT",
)  # fmt: skip
"""Variables of git that hold for every repository of the user. Others name a repository, or change what git prints."""
_OURS_BEGIN: Final = ("GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_", "GIT_HTTP_", "GIT_SSL_")
_OFF: Final = (
    "core.fsmonitor=false", "core.hooksPath=/dev/null", "core.untrackedCache=false", "core.pager=cat",
    "core.attributesFile=/dev/null", "submodule.recurse=false", "protocol.ext.allow=never",
)  # fmt: skip


class GitFails(Exception):
    """git ended with an error; the message is its first line."""


class Repository(NamedTuple):
    """What belongs to a worktree at ``top``. ``own``: its git folder, ``shared``: that of all worktrees together."""

    top: Path
    own: Path
    shared: Path


def run(words: Sequence[str], *, folder: Path | None = None, clean: Path, **variables: str) -> bytes:
    """Run git with ``clean``, an empty repository of :func:`clean_repository`, and return its output.

    ``folder``: where; by default a place that is not in a repository. Raises ``FileNotFoundError`` without git,
    ``subprocess.TimeoutExpired`` after :data:`TIMEOUT_S`, and :class:`GitFails`.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name in _OURS or name.startswith(_OURS_BEGIN)
    }
    ours = {
        "GIT_DIR": str(clean), "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat",
        "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C", **variables,
    }  # fmt: skip
    off = [word for each in _OFF for word in ("-c", each)]
    ended = subprocess.run(
        ["git", "--no-pager", "--no-optional-locks", *off, *words],
        cwd=clean if folder is None else folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**kept, **ours},
    )
    if ended.returncode:
        raise GitFails(ended.stderr.decode("utf-8", "replace").strip() or f"git ends with {ended.returncode}")
    return ended.stdout


@contextmanager
def clean_repository(repository: Repository | None = None, *, of: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Make an empty repository for :func:`run`; with ``repository`` its objects and ``info/exclude`` can be read.

    ``of``: what the configuration of ``repository`` says. Only the kind of its checksums is taken from it.
    """
    with tempfile.TemporaryDirectory(prefix="hvd-elastic-git-") as name:
        clean = Path(name)
        kind = (of or {}).get("extensions.objectformat", "sha1")
        lines = ["[core]", "repositoryformatversion = 1", "bare = false", "[extensions]"]
        lines.append(f"objectFormat = {'sha256' if kind.lower() == 'sha256' else 'sha1'}")
        (clean / "config").write_text("\n".join(lines) + "\n")
        (clean / "HEAD").write_text("ref: refs/heads/none\n")
        for each in ("refs", "objects/info", "info"):
            (clean / each).mkdir(parents=True)
        if repository is not None:
            (clean / "objects/info/alternates").write_text(f"{repository.shared / 'objects'}\n")
            for index in repository.own.glob("sharedindex.*"):
                (clean / index.name).symlink_to(index)
            exclude = repository.shared / "info" / "exclude"
            if is_regular(exclude):
                (clean / "info" / "exclude").symlink_to(exclude)
        yield clean


def repository_of(folder: Path) -> Repository | None:
    """Return the repository in whose worktree a folder is, as git would find it, without git; None outside of one."""
    start = folder.resolve()
    device = start.stat().st_dev
    for top in (start, *start.parents):
        if top.stat().st_dev != device:
            return None
        own = _git_folder(top / ".git")
        if own is not None:
            common = own / "commondir"
            shared = own / _line(common) if is_regular(common) else own
            return Repository(top, own, shared)
    return None


def settings_of(repository: Repository) -> dict[str, str]:
    """Return the configuration of a repository, read as text; names are in lower case. Raises what :func:`run` does."""
    found: dict[str, str] = {}
    for path in (repository.shared / "config", repository.own / "config.worktree"):
        if path.exists():
            found.update(_settings(["--file", str(path), "--includes"], path))
    return found


def settings_of_user() -> dict[str, str]:
    """Return the configuration of the user and the machine. Raises what :func:`run` does."""
    return _settings([], None)


def _settings(words: Sequence[str], path: Path | None) -> dict[str, str]:
    if path is not None and not is_regular(path):
        raise GitFails(f"{path} is not a regular file")
    with clean_repository() as clean:
        listed = run(["config", "--null", "--list", *words], clean=clean)
    pairs = (os.fsdecode(each).partition("\n") for each in listed.split(b"\0") if each)
    return {name.lower(): value for name, _, value in pairs}


def is_regular(path: Path) -> bool:
    """Whether a path leads to a regular file: git would wait at a pipe."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _git_folder(path: Path) -> Path | None:
    """Return the git folder that ``.git`` is or names; None if it is neither."""
    found = path
    if is_regular(path):
        line = _line(path)
        if not line.startswith("gitdir:"):
            return None
        found = path.parent / line.removeprefix("gitdir:").strip()
    return found if is_regular(found / "HEAD") or (found / "HEAD").is_symlink() else None


def _line(path: Path) -> str:
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        return file.read(4096).partition("\n")[0]
