"""Where the code of a job comes from: what ``--sync`` names. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from hvd_elastic_ext.core.errors import UsageError

GIT: Final = "git+"
_REVISION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]*", re.ASCII)
_URL: Final = re.compile(r"https?://[A-Za-z0-9.-]+(:\d+)?/[A-Za-z0-9_./~+%-]+", re.ASCII)


class Revision(NamedTuple):
    """A branch, tag or commit of a git repository."""

    url: str
    revision: str


def revision_of(sync: str) -> Revision | None:
    """The revision that ``git+URL@REV`` means, HEAD without ``@REV``; None for a folder. Raises :class:`UsageError`."""
    if not sync.startswith(GIT):
        return None
    whole = sync.removeprefix(GIT)
    try:
        parts = urlsplit(whole)
    except ValueError as error:
        raise UsageError(f"--sync {sync}: {error}") from None
    if "@" in parts.netloc:
        raise UsageError("--sync: the URL holds a user or a password, which would stand in the job; see --sync-secret")
    path, _, revision = parts.path.rpartition("@") if "@" in parts.path else (parts.path, "", "HEAD")
    url = f"{parts.scheme}://{parts.netloc}{path}"
    if not _URL.fullmatch(url) or parts.query or parts.fragment:
        raise UsageError(f"--sync {sync}: write git+https://HOST/REPOSITORY@REVISION")
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise UsageError(f"--sync {sync}: {revision!r} is no name of a branch, tag or commit")
    return Revision(url, revision)
