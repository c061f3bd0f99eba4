"""Packs a folder for ``--sync``: the same bytes for the same files, wherever and whenever it is packed."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.code.files import names_of

MOST: Final = 900_000
"""Bytes that a ConfigMap has room for, besides its metadata: a server takes a MiB at most."""


def packed(folder: Path) -> bytes:
    """The files of ``folder`` as a ``tar.gz``. What git ignores is left out. Raises :class:`UsageError`."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in names_of("--sync", folder):
            archive.addfile(_entry(name, folder / name), io.BytesIO((folder / name).read_bytes()))
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
