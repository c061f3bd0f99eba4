"""A job whose newest checkpoint is the end of training of the same command."""

from __future__ import annotations

from typing import Any, NamedTuple


class Finished(NamedTuple):
    """The checkpoint that holds the end of training."""

    path: str
    step: int


def message(found: Finished, place: str) -> str:
    """The message for the user, with the ways to continue."""
    return (
        f"the job is done: step {found.step} is in {found.path}, written by this same command and script; "
        "to train on from there add --train-on, "
        f"to start again name another --checkpoint-dir, or remove {place}"
    )


def read(answer: Any, mark: str) -> Finished | None:
    """From the answer to ``held``: the newest checkpoint, if it is the end of the command of that ``mark``."""
    match answer:
        case {"newest": {"path": str(path), "step": int(step), "finished": str(finished)}} if mark and finished == mark:
            return Finished(path, step)
    return None
