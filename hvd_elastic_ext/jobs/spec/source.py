"""The source of a job's code, as given by ``--sync``. Pure.

It is a folder of this machine, a revision of a git repository, or a folder of a claim. A URL may hold a password, so no
error quotes it.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from hvd_elastic_ext.core.errors import UsageError

GIT: Final = "git+"
PVC: Final = "pvc:"
HOW: Final = "--sync: write git+https://HOST/REPOSITORY@REVISION"
"""This error never quotes the value: it may contain a password."""
_REVISION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]*", re.ASCII)
_URL: Final = re.compile(r"https?://[A-Za-z0-9.-]+(:\d+)?/[A-Za-z0-9_./~+%-]+", re.ASCII)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9.+-]*:|[^/]*@", re.ASCII)
_CLAIM: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.ASCII)
_WITH_USER: Final = re.compile(r"(?<=://)[^/\s]*@")


class Revision(NamedTuple):
    """A branch, tag or commit of a git repository."""

    url: str
    revision: str


class Claim(NamedTuple):
    """A folder of a PersistentVolumeClaim."""

    name: str
    path: str
    """"" means its root."""


def problem(sync: str, *, secret: str) -> str:
    """Return what is wrong with a value of ``--sync`` or its secret; "" if both are valid."""
    if secret and not sync.startswith(GIT):
        return "--sync-secret is for --sync git+https://…"
    if secret and not sync.lower().startswith(f"{GIT}https:"):
        return "--sync-secret: it would be sent in the clear; write --sync git+https://…"
    if sync.startswith((GIT, PVC)) or not _SCHEME.match(sync):
        return ""
    return f"{HOW}, pvc:CLAIM/FOLDER, or ./FOLDER"


def claim_of(sync: str) -> Claim | None:
    """Return the claim of ``pvc:NAME[/FOLDER]``; None for other values. Raises :class:`UsageError`."""
    if not sync.startswith(PVC):
        return None
    name, _, path = sync.removeprefix(PVC).partition("/")
    parts = [each for each in path.split("/") if each]
    if not _CLAIM.fullmatch(name) or ".." in parts or ":" in path:
        raise UsageError(f"--sync {sync}: write pvc:CLAIM, or pvc:CLAIM/FOLDER")
    return Claim(name, "/".join(parts))


def revision_of(sync: str) -> Revision | None:
    """Return the revision of ``git+URL@REV``, HEAD without ``@REV``; None for a folder. Raises :class:`UsageError`."""
    if not sync.startswith(GIT):
        return None
    try:
        parts = urlsplit(sync.removeprefix(GIT))
    except ValueError:
        raise UsageError(HOW) from None
    if "@" in parts.netloc:
        raise UsageError(
            "--sync: the URL holds a user or a password, which would be visible in the job; see --sync-secret"
        )
    path, _, revision = parts.path.rpartition("@") if "@" in parts.path else (parts.path, "", "HEAD")
    url = f"{parts.scheme}://{parts.netloc}{path}"
    if not _URL.fullmatch(url) or parts.query or parts.fragment:
        raise UsageError(HOW)
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise UsageError("--sync: what follows @ is not the name of a branch, tag or commit")
    return Revision(url, revision)


def without_user(text: str) -> str:
    """Return a program's message without user and password of URLs."""
    return _WITH_USER.sub("…@", text)
