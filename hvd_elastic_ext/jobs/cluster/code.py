"""Packs a folder for ``--sync``."""

from __future__ import annotations

from pathlib import Path

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.code.archive import packed as archive_of
from hvd_elastic_ext.io.code.checksum import MAX_BYTES
from hvd_elastic_ext.io.code.files import names_of


def packed(folder: Path) -> bytes:
    """Return the files of ``folder`` as a ``tar.gz``, without files that git ignores. Raises :class:`UsageError`."""
    names = names_of("--sync", folder)
    whole = sum((folder / name).stat().st_size for name in names)
    if not names or whole > MAX_BYTES:
        why = f"{whole:,} bytes; {MAX_BYTES >> 20} MiB can be sent" if names else "it has no files"
        raise UsageError(
            f"--sync {folder}: {why}; add what is large to .gitignore, or put it on a claim: --sync pvc:CLAIM/FOLDER"
        )
    try:
        return archive_of(folder, names)
    except OSError as error:
        raise UsageError(f"--sync {folder}: {error}") from None
