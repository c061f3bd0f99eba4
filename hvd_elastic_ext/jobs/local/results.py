"""Arguments and results of a function as text, never pickled. The processes of the job call :func:`run_and_store`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.checkpoint.values import alone
from hvd_elastic_ext.core.errors import UsageError

GIVEN, RESULT, FAILED = "given.json", "result-{rank}.json", "failed-{pid}.txt"
LONGEST: Final = 500


def text_of(value: Any, what: str) -> str:
    """Return values as text. Raises :class:`UsageError` for a value that cannot be sent, with the part of it and what
    to send instead."""
    try:
        return alone.to_text(value)
    except ValueError as error:
        raise UsageError(f"{what}{getattr(error, 'path', '')}: {alone.refusal(error, 'send')}") from None


def run_and_store(function: Callable[..., Any], folder: str) -> None:
    """Run the function in a process of the job, and store its result in the folder, or why the result cannot be sent.

    A result that cannot be sent is not a failure of the training, which is complete by then.
    """
    given = alone.from_text((Path(folder) / GIVEN).read_text(), source="run")
    try:
        result = function(*given["args"], **given["kwargs"])
    except Exception as error:
        _put(Path(folder) / FAILED.format(pid=os.getpid()), _error_text(error))
        raise
    rank, size = _place()
    try:
        left: dict[str, Any] = {"size": size, "result": text_of(result, "result")}
    except UsageError as error:
        left = {"size": size, "problem": str(error)}
    _put(Path(folder) / RESULT.format(rank=rank), json.dumps(left, allow_nan=False))


def _place() -> tuple[int, int]:
    """Return rank and size. If the function has not joined the world, or has left it, join it now."""
    import hvd_elastic_ext.torch as elastic

    try:
        return elastic.rank(), elastic.size()
    except (UsageError, ValueError):  # before init(); Horovod's, after shutdown()
        elastic.init()
        return elastic.rank(), elastic.size()


def _error_text(error: Exception) -> str:
    text = " ".join(str(error).split())[:LONGEST]
    return f"{type(error).__name__}{': ' * bool(text)}{text}"


def _put(path: Path, text: str) -> None:
    fresh = path.with_suffix(".tmp")
    fresh.write_text(text)
    fresh.replace(path)
