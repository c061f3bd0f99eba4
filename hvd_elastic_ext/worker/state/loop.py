"""The loop around the user's training function: interrupt → roll back? → new world → sync."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.worker.calls.calls import Calls
from hvd_elastic_ext.worker.calls.calls import current as current_calls
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.error_report import text_of
from hvd_elastic_ext.worker.process.standby import CallOver
from hvd_elastic_ext.worker.state import rehearsal
from hvd_elastic_ext.worker.state.arguments import check_function, state_among
from hvd_elastic_ext.worker.stock import HorovodInternalError, HostsUpdatedInterrupt

log = logging.getLogger(__name__)

HOROVODS_STEP: Final = "_allreduce_delay"
"""The attribute by which Horovod's torch optimizers are known."""
PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0)
"""Seconds between the attempts to join the next world."""


def run(
    state: Any,
    train: Callable[[], Any],
    *,
    reset: Callable[[], None],
    clock: Clock,
    lost_by: Callable[[BaseException], bool] = lambda error: False,
) -> Any:
    """Run ``train`` in one world after another until it returns. Return its result, raise its errors except interrupts.

    A sync is never skipped: a new world and a sync follow every interrupt. ``lost_by``: whether an error of a sync, or
    of a reset callback, which may train a step, is that of a lost peer.
    """
    with getattr(state, "_training", nullcontext)():  # a State of Horovod's own has no such method
        while True:
            try:
                with losses_told(lost_by):
                    state.sync()
                return train()
            except HorovodInternalError as lost:
                log.warning("a peer was lost, rolling back: %s", lost)
                state.restore()
            except HostsUpdatedInterrupt:
                pass  # it comes between two steps: there is nothing to roll back
            _next_world(state, reset, clock, lost_by)


def _next_world(state: Any, reset: Callable[[], None], clock: Clock, lost_by: Callable[[BaseException], bool]) -> None:
    """Join the next world. After another loss try again. The state does not change, but for a step that a reset
    callback had begun with the lost peer.
    """
    for pause in (*PAUSES_S, None):
        try:
            reset()
            with losses_told(lost_by):
                state.on_reset()
            return
        except (HorovodInternalError, HostsUpdatedInterrupt):
            if pause is None:
                raise
        drop_steps(state)
        clock.wait(threading.Event(), pause)


def drop_steps(state: Any) -> None:
    """Drop the steps that optimizers in a State have begun in a world that has ended: their gradients, and reductions
    that never end. Horovod's optimizers refuse another step before that.
    """
    if (drop := getattr(state, "_drop_steps", None)) is not None:
        drop()
        return
    for value in [each for each in vars(state).values() if hasattr(each, HOROVODS_STEP)]:  # in a State of Horovod's own
        from hvd_elastic_ext.worker.optim.averaging import drop_step

        drop_step(value)


def rehearse_if_due(state: Any, train: Callable[[], object]) -> None:
    """Rehearse a step, if this process is about to join others, and its State does so."""
    rehearse = getattr(state, "_rehearse", None)
    if rehearse is not None and rehearsal.is_due() and current_calls().finished() is None:
        rehearse(train)


def lost(error: BaseException) -> HorovodInternalError:
    """The error of a lost peer, for one of the script's framework that only says so."""
    return HorovodInternalError(f"{type(error).__name__}: {text_of(error)}")


@contextmanager
def losses_told(lost_by: Callable[[BaseException], bool]) -> Iterator[None]:
    """Context around code of the script: errors that ``lost_by`` knows as those of a lost peer are raised as such."""
    try:
        yield
    except (HorovodInternalError, HostsUpdatedInterrupt):
        raise
    except Exception as error:
        if lost_by(error):
            raise lost(error) from error
        raise


def one_call(
    train: Callable[..., Any],
    state: Any,
    *,
    whole: Callable[[Any], AbstractContextManager[None]],
    run: Callable[[], Any],
) -> Any:
    """Run one training call, in the context ``whole(state)``. If it is over already, return its result instead.

    A call inside another one is a part of that: it is not numbered, and leaves no result.
    """
    calls = current_calls()
    if calls.running:
        calls.within_another(train)
        return run()
    try:
        return _numbered(calls, train, state, whole=whole, run=run)
    finally:
        calls.running = False  # also if its result cannot be read, or made


def _numbered(
    calls: Calls,
    train: Callable[..., Any],
    state: Any,
    *,
    whole: Callable[[Any], AbstractContextManager[None]],
    run: Callable[[], Any],
) -> Any:
    keeper = getattr(state, "_keeper", None)  # a State of Horovod's own has none
    calls.begin(train)
    if keeper is None:
        calls.never_compared()
    try:
        if standby.current().parks and calls.finished() is not None:
            raise CallOver  # noqa: TRY301 (as a sync does)
        with whole(state):
            if keeper is not None:
                keeper.begin_call()
            value = run()
    except CallOver:
        return _skipped(calls, keeper)
    except BaseException:
        calls.raised(None if keeper is None else keeper.end)
        raise
    if keeper is None:
        calls.returned_to_others(value)
    else:
        calls.returned(keeper.left_by(value), tells=keeper.is_first_rank)
    return value


def _skipped(calls: Calls, keeper: Any) -> Any:
    finished = calls.finished()
    assert finished is not None, "a call that is over has a result"
    if keeper is not None:
        keeper.skip_call(finished)
    calls.skipped(finished)
    return finished.value


def elastic(
    train: Callable[..., Any],
    *,
    reset: Callable[[], None],
    notifications: Any,
    clock: Clock,
    whole: Callable[[Any], AbstractContextManager[None]] = nullcontext,
    synced: Callable[[], None] = lambda: None,
    lost_by: Callable[[BaseException], bool] = lambda error: False,
) -> Callable[..., Any]:
    """Wrap a training function or method with a State as argument. The context ``whole(state)`` is around each call.

    ``notifications``: Horovod's notification manager. ``synced`` is called in every world after its ranks have agreed,
    before the training function. Raises :class:`UsageError` if ``train`` is not a function.
    """
    check_function(train)

    def after_sync(*args: Any, **kwargs: Any) -> Any:
        synced()
        with losses_told(lost_by):
            value = train(*args, **kwargs)
            getattr(state_among(train, args, kwargs), "_finish_rounds", lambda: None)()
            return value

    @functools.wraps(train)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if rehearsal.is_under_way():
            return train(*args, **kwargs)  # within the one that is rehearsed: it must not join the others
        state = state_among(train, args, kwargs)
        notifications.register_listener(state)  # first: a notice may come as soon as the launcher knows the address
        try:
            notifications.init()
            rehearse_if_due(state, lambda: train(*args, **kwargs))
            return one_call(
                train,
                state,
                whole=whole,
                run=lambda: run(state, lambda: after_sync(*args, **kwargs), reset=reset, clock=clock, lost_by=lost_by),
            )
        finally:
            notifications.remove_listener(state)
            getattr(state, "ended", lambda: None)()  # a State of Horovod's own has no such method

    return wrapper
