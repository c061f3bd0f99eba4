"""Names of checkpoints and of the files in them. A name is its commit's identity, so that age needs no clock."""

from __future__ import annotations

import re
from typing import Final

from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.errors import Permanent

MANIFEST: Final = "manifest.json"
"""What makes a checkpoint exist."""

_LIMIT: Final = 1 << 63
_NAME: Final = re.compile(r"(\d{6,19})-(\d{6,19})-(\d{9,19})-([0-9a-f]{16})")
_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

Age = tuple[int, int, int, int]


def name_of(identity: Identity) -> str:
    """``000001-000004-000000120-<lineage>``: incarnation, generation, number. Sorted as text, the newest comes last.

    (So it does up to a million launchers; :func:`age` always tells.)
    """
    if not all(0 <= part < _LIMIT for part in identity):
        raise Permanent(f"{tuple(identity)} is no commit's identity")
    lineage, incarnation, generation, number = identity
    return f"{incarnation:06d}-{generation:06d}-{number:09d}-{lineage:016x}"


def identity_of(name: str) -> Identity | None:
    """The identity that ``name`` tells; None for a name that :func:`name_of` would not give."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    incarnation, generation, number = (int(match[place]) for place in (1, 2, 3))
    identity = Identity(int(match[4], 16), incarnation, generation, number)
    return identity if max(identity) < _LIMIT and name_of(identity) == name else None


def age(identity: Identity) -> Age:
    """Greater for what is newer. A lineage is a random number: it decides between commits that are equally new."""
    return identity.incarnation, identity.generation, identity.number, identity.lineage


def is_file_name(text: object) -> bool:
    """True for what may be a file in a checkpoint's folder: no path leads out of it."""
    return isinstance(text, str) and _FILE.fullmatch(text) is not None
