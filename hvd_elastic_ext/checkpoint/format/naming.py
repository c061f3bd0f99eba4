"""Names of checkpoints and of the files in them. A name contains the commit's identity, so that the age needs no
clock."""

from __future__ import annotations

import re
from typing import Final

from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.errors import Permanent

MANIFEST: Final = "manifest.json"
"""The file that completes a checkpoint."""

_LIMIT: Final = 1 << 63
_NAME: Final = re.compile(r"(\d{6,19})-(\d{6,19})-(\d{9,19})-([0-9a-f]{16})")
_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

Age = tuple[int, int, int, int]


def name_of(identity: Identity) -> str:
    """``000001-000004-000000120-<lineage>``: incarnation, generation, number. Sorted as text, the newest comes last.

    (This holds for up to a million launchers; :func:`age` is always right.)
    """
    if not all(0 <= part < _LIMIT for part in identity):
        raise Permanent(f"{tuple(identity)} is not a commit's identity")
    lineage, incarnation, generation, number = identity
    return f"{incarnation:06d}-{generation:06d}-{number:09d}-{lineage:016x}"


def identity_of(name: str) -> Identity | None:
    """Return the identity in ``name``; None for a name that :func:`name_of` does not make."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    incarnation, generation, number = (int(match[place]) for place in (1, 2, 3))
    identity = Identity(int(match[4], 16), incarnation, generation, number)
    return identity if max(identity) < _LIMIT and name_of(identity) == name else None


def age(identity: Identity) -> Age:
    """Sort key: greater for the newer commit. The lineage, a random number, only decides between equally new
    commits."""
    return identity.incarnation, identity.generation, identity.number, identity.lineage


def is_file_name(text: object) -> bool:
    """Whether a name is valid for a file in a checkpoint's folder: no path that leads out of it."""
    return isinstance(text, str) and _FILE.fullmatch(text) is not None
