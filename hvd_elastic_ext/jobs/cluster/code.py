"""Packs a folder for ``--sync``: the same bytes for the same files, wherever and whenever it is packed."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.errors import UsageError

MOST: Final = 900_000
"""Bytes that a ConfigMap has room for, besides its metadata: a server takes a MiB at most."""
_ENGLISH: Final = {"LC_ALL": "C"}
LEFT_OUT: Final = (".git", "__pycache__", ".hvd-elastic", ".venv")
"""Folders that nobody means, where git does not say what belongs to the code."""


def packed(folder: Path) -> bytes:
    """The files of ``folder`` as a ``tar.gz``. What git ignores is left out. Raises :class:`UsageError`."""
    if not folder.is_dir():
        raise UsageError(f"--sync {folder}: there is no such folder")
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        known = sorted(_by_git(folder) or _all(folder))
        # git names a submodule as one entry, and says nothing of its files.
        inside = [name for name in known if (folder / name).is_dir() and not (folder / name).is_symlink()]
        if inside:
            said = f"{inside[0]} is a repository of its own, which is not sent; sync a plain copy"
            raise UsageError(f"--sync {folder}: {said}")
        sent = {(folder / name).resolve() for name in known if not (folder / name).is_symlink()}
        for name in known:
            path = folder / name
            if path.is_file() and path.resolve() in sent:  # a link out of the folder, or to what is ignored, stays here
                archive.addfile(_entry(name, path), io.BytesIO(path.read_bytes()))
    data = gzip.compress(raw.getvalue(), mtime=0)
    if len(data) > MOST:
        raise UsageError(
            f"--sync {folder}: {len(data):,} bytes packed, and a ConfigMap has room for {MOST:,}; add what is large to "
            ".gitignore, or put the code into the image or on a claim"
        )
    return data


def _entry(name: str, path: Path) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = path.stat().st_size
    entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
    return entry


def _by_git(folder: Path) -> list[str]:
    """Files that git knows or does not ignore; none without git or outside of a repository."""
    words = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        ended = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
            env={**os.environ, **_ENGLISH},
        )
    except FileNotFoundError:
        return []
    except subprocess.TimeoutExpired:
        raise UsageError(f"--sync {folder}: git takes longer than 60 s to list its files") from None
    if ended.returncode == 0:
        return [os.fsdecode(name) for name in ended.stdout.split(b"\0") if name]
    said = ended.stderr.decode("utf-8", "replace").strip()
    if "not a git repository" in said:
        return []
    # Such as for a folder of another user. What is ignored may be a secret.
    raise UsageError(f"--sync {folder}: git does not say what is ignored: {said.partition(chr(10))[0]}")


def _all(folder: Path) -> Iterator[str]:
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        yield from (str(Path(above, name).relative_to(folder)) for name in names)
