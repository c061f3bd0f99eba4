"""Values of ``--checkpoint-every``, ``--commit-every`` and similar options: how often, and where to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError

_STEPS: Final = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class Cadence:
    """At most one of ``steps``, ``seconds`` and ``notice_only`` is set; none of them is ``auto``."""

    steps: int | None = None
    seconds: float | None = None
    notice_only: bool = False

    @property
    def auto(self) -> bool:
        """Whether none of the three is set: the launcher chooses how often."""
        return self == Cadence()

    def __str__(self) -> str:
        """As it is written on a command line."""
        if self.notice_only:
            return "notice"
        return f"{self.seconds:g}s" if self.seconds is not None else "auto" if self.steps is None else str(self.steps)


@dataclass(frozen=True, slots=True)
class Durability:
    """Where checkpoints go (a folder, or a URL that fsspec knows), how often, and how many are left there.

    ``mark`` identifies the command; a checkpoint of the end of training contains the mark of its command. With
    ``train_on`` the job continues from such a checkpoint as from any other.
    """

    place: str
    every: Cadence
    keep: int = 3
    mark: str = ""
    train_on: bool = False


AUTO: Final = Cadence()
ON_NOTICE: Final = Cadence(notice_only=True)


def parse_checkpoint_every(text: str, *, where: str = "--checkpoint-every") -> Cadence:
    """Read ``auto``, ``N`` (steps), a time with its unit (``90s``, ``10m``) or ``notice``.

    Raises :class:`UsageError`, one line.
    """
    word = text.strip()
    found = {"auto": AUTO, "notice": ON_NOTICE}.get(word) or _number(word)
    if found is None:
        raise UsageError(
            f"{where} {text!r}: write auto, a number of steps (100), a time with its unit (90s, 10m), or notice"
        )
    return found


def parse_commit_every(text: str, *, where: str = "--commit-every") -> Cadence:
    """Read ``auto`` or ``N`` (calls of ``state.commit()``). Raises :class:`UsageError`, one line."""
    word = text.strip()
    found = AUTO if word == "auto" else _number(word)
    if found is None or found.seconds is not None:
        raise UsageError(f"{where} {text!r}: write auto, or a number of steps (10)")
    return found


def _number(word: str) -> Cadence | None:
    """Steps or seconds above 0; None for anything else."""
    if _STEPS.fullmatch(word) and int(word):
        return Cadence(steps=int(word))
    seconds = durations.parse(word) if word[-1:].isalpha() else None
    return Cadence(seconds=seconds) if seconds else None
