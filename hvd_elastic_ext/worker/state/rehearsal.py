"""The rehearsal of a first step: a newcomer traces its functions before the others wait for it.

TensorFlow makes the graph of a function at its first call, which takes seconds. Without a rehearsal a newcomer does so
in the new world, where all others wait for its gradients. Before it joins, Horovod has a world of one here, and its
operations ask for the size when they run: so the training function is called, until it has done one step or commits,
and everything that the State keeps is put back. What it prints meanwhile is not shown.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from hvd_elastic_ext.worker.process import standby

log = logging.getLogger(__name__)

_LONGEST: Final = 300
"""Characters of an error in a log line. TensorFlow's have dozens of lines."""


class RehearsalOver(BaseException):
    """Ends the training function after its first step. Not an ``Exception``, which a script may catch."""


_under_way: Final = list[None]()
"""One entry for each rehearsal under way in this process."""


class Rehearsal:
    """Whether a rehearsal is under way in this process, and whether its step is done."""

    def __init__(self) -> None:
        self._steps: Callable[[], int] | None = None
        self._before = 0

    def end_if_stepped(self) -> None:
        """End it, if a step is done."""
        if self._steps is not None and self._steps() > self._before:
            raise RehearsalOver

    def end(self) -> None:
        """End it, if it is under way: the training function commits, or asks for changes."""
        if self._steps is not None:
            raise RehearsalOver

    def run(
        self,
        train: Callable[[], object],
        *,
        steps: Callable[[], int],
        watched: Callable[[Callable[[], None]], AbstractContextManager[None]],
    ) -> None:
        """Call ``train`` until a step is done, by the count that ``steps`` returns. Its errors are logged, and come
        again when it trains. ``watched``: returns a context in which its argument is called whenever a step may have
        ended.
        """
        self._steps, self._before = steps, steps()
        _under_way.append(None)
        try:
            quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
            with quiet[0], quiet[1], watched(self.end_if_stepped):
                train()
        except RehearsalOver:
            pass
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the script's own, which comes again in training)
            why = " ".join(str(error).split())[:_LONGEST]
            log.info("the rehearsal of a step ended early: %s: %s", type(error).__name__, why)
        finally:
            self._steps = None
            _under_way.pop()


def is_under_way() -> bool:
    """Whether this process rehearses."""
    return bool(_under_way)


def is_due() -> bool:
    """Whether this process is about to join others that train, and is in a world of its own until then."""
    process = standby.current()
    return process.parks and process.goes_alone
