"""Finds the files of a folder that are code: those that git does not ignore; where there is neither ``.git`` nor
``.gitignore``, all except :data:`LEFT_OUT`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io import git
from hvd_elastic_ext.io.code.archive import KEPT, mark, packed
from hvd_elastic_ext.io.code.checksum import Wanted, checksum

LEFT_OUT: Final = (".git", "__pycache__", ".venv")
"""Folders that are never code, if git does not determine which files are code."""
MAX_NAMES: Final = 40_000
"""Most bytes of packed names: they are part of the line that starts an agent."""

IGNORES: Final = ".gitignore"
_USERS_IGNORES: Final = "core.excludesfile"


class Code(NamedTuple):
    """The files that every host must have (``wanted``, as sent to agents), and their checksum here; both "" without
    ``--code``. ``archive``: the files themselves, for hosts that have others; empty if they are not sent. ``mark``: a
    mark that only the sent folder contains.
    """

    wanted: bytes = b""
    sha256: str = ""
    archive: bytes = b""
    mark: str = ""


NO_CODE: Final = Code()


def code_of(option: str, folder: Path | None, *, sender: str = "") -> Code:
    """Return the present code of a folder, if one is given, with the files if ``sender``, a job, sends them. Raises
    :class:`UsageError` that names ``option``."""
    if folder is None:
        return Code()
    names = tuple(names_of(option, folder))
    wanted = Wanted(str(folder.absolute()), names)
    try:
        found, changed = Code(wanted.packed(), checksum(wanted.folder, names)), False
        if sender:
            found = found._replace(archive=packed(folder, names, private=True), mark=mark(folder, sender))
            changed = checksum(wanted.folder, names) != found.sha256
    except (ValueError, OSError) as error:
        raise UsageError(f"{option} {folder}: {error}") from None
    if changed:
        raise UsageError(f"{option} {folder}: its files change while they are read")
    if not names or len(found.wanted) > MAX_NAMES:
        why = f"it has {len(names):,} files, too many to compare" if names else "it has no files"
        raise UsageError(f"{option} {folder}: {why}; name the folder with the code alone")
    return found


def names_of(option: str, folder: Path) -> list[str]:
    """Return the sorted names of the files. Links out of the folder, or to ignored files, are left out. Raises
    :class:`UsageError` that names ``option``."""
    if not folder.is_dir():
        raise UsageError(f"{option} {folder}: there is no such folder")
    found = _by_git(option, folder)
    # The folder KEPT contains keys and journals of jobs: leave it out even if git does not ignore it.
    known = sorted({name for name in (_all(folder) if found is None else found) if KEPT not in Path(name).parts})
    if found == [] and any(_all(folder)):
        raise UsageError(f"{option} {folder}: git ignores all of its files")
    # git lists a submodule as one entry, without its files.
    inside = [name for name in known if (folder / name).is_dir() and not (folder / name).is_symlink()]
    if inside:
        problem = f"{inside[0]} is a repository of its own, which is not sent; sync a plain copy"
        raise UsageError(f"{option} {folder}: {problem}")
    sent = {(folder / name).resolve() for name in known if not (folder / name).is_symlink()}
    return [name for name in known if (folder / name).is_file() and (folder / name).resolve() in sent]


def _by_git(option: str, folder: Path) -> list[str] | None:
    """Return the files that git tracks or does not ignore; None where nothing says what is ignored."""
    try:
        repository = git.repository_of(folder)
        if repository is None and not any(Path(name).name == IGNORES for name in _all(folder)):
            return None
        return _listed(folder, repository)
    except FileNotFoundError:
        raise UsageError(
            f"{option} {folder}: git is not installed, and it knows what {IGNORES} leaves out; install git, or name a "
            f"copy of the folder without {IGNORES} and .git"
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{option} {folder}: git takes longer than {git.TIMEOUT_S:g} s to list its files") from None
    except (OSError, git.GitFails) as error:
        # An ignored file may be a secret, so send nothing then.
        problem = str(error).partition("\n")[0]
        raise UsageError(f"{option} {folder}: git does not say what is ignored: {problem}") from None


def _listed(folder: Path, repository: git.Repository | None) -> list[str]:
    said = {} if repository is None else git.settings_of(repository)
    ignores = said.get(_USERS_IGNORES) or git.settings_of_user().get(_USERS_IGNORES)
    words = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if ignores:
        words = ["-c", f"{_USERS_IGNORES}={ignores}", *words]
    top = folder if repository is None else repository.top
    with git.clean_repository(repository, of=said) as clean:
        index = clean / "index" if repository is None else repository.own / "index"
        if index.exists() and not git.is_regular(index):
            raise git.GitFails(f"{index} is not a regular file")
        listed = git.run(words, folder=folder, clean=clean, GIT_WORK_TREE=str(top.resolve()), GIT_INDEX_FILE=str(index))
    names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    return names if repository is not None else [name for name in names if not {*Path(name).parts} & {*LEFT_OUT}]


def _all(folder: Path) -> Iterator[str]:
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        yield from (str(Path(above, name).relative_to(folder)) for name in names)
