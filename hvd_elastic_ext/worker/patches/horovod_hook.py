"""What is put into Horovod's modules in a process that an agent started with a link.

Each function is called once a module has been loaded: by the import hook, or by
the public face if Horovod was there first. Nothing of this happens without a link.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.messages import HostsUpdate
from hvd_elastic_ext.core.rank_info import Place
from hvd_elastic_ext.core.slot_protocol import ENGINE
from hvd_elastic_ext.worker.process import link, standby
from hvd_elastic_ext.worker.process.link import Tell
from hvd_elastic_ext.worker.process.standby import Standby
from hvd_elastic_ext.worker.process.step_timer import Pace

log = logging.getLogger(__name__)

FACE: Final = "hvd_elastic_ext.torch"
ADOPT: Final = "HVD_ELASTIC_ADOPT"

_DONE: Final = "hvd_elastic_hooked"
_ATTEMPTS: Final = 5


def install() -> None:
    """Change whatever of Horovod is loaded already, if this process has a link. Calling it again changes nothing."""
    if not (link.is_announced(os.environ) or standby.current().link.connected):
        return
    for name, change in HOOKS.items():
        module = sys.modules.get(name)
        if module is not None:
            change(module)


def basics(module: Any) -> None:
    """``horovod.common.basics``: ``init`` of every framework's module comes by here."""
    if _marked(module):
        return
    horovods = module.HorovodBasics.init

    @functools.wraps(horovods)
    def init(self: Any, comm: Any = None, process_sets: Any = None) -> None:
        way = standby.current()
        if way.restarts:
            raise UsageError(
                f"hvd.init(): --engine {os.environ[ENGINE]} starts no world of Horovod's; call elastic.init() instead "
                "(with mpirun it needs mpi4py), or leave --engine out"
            )
        if not way.link.connected or self.is_initialized():
            horovods(self, comm, process_sets)
            return
        _refuse(comm, process_sets)
        way.init(functools.partial(horovods, self), self.shutdown, later=FACE in sys.modules)
        if not way.parks:
            way.entered(self.rank(), self.size())

    module.HorovodBasics.init = init


def elastic(module: Any) -> None:
    """``horovod.common.elastic``: the stock loop, and where host updates come in."""
    if _marked(module):
        return
    run_fn = functools.partial(_run_fn, module.run_fn)
    for name in ("horovod.common.elastic", "horovod.torch.elastic", "horovod.tensorflow.elastic"):
        user = sys.modules.get(name)
        if user is not None and hasattr(user, "run_fn"):
            user.__dict__["run_fn"] = run_fn
    manager = module.notification_manager
    # Updates come over the link: no port is opened for them, and nothing is unpickled.
    manager.init = _no_service
    way = standby.current()
    way.updated = Updates(manager, way)


def torch(module: Any) -> None:
    """``horovod.torch``: the places that user code sees, safe collectives, and with ``--adopt`` our classes."""
    if _marked(module):
        return
    for name in Place._fields:
        setattr(module, name, _shown(name, getattr(module, name)))
    module.local_rank = _shown_local_rank(module.local_rank)
    # Stock samplers made in the park, and which kind of optimizer is made there, go by the planned place, too.
    # Everything else inside Horovod needs the real one: who sends, by how much is divided.
    for inner, names in ((module.elastic.sampler, ("rank", "size")), (module.optimizer, ("size",))):
        for name in names:
            setattr(inner, name, getattr(module, name))
    _watch_pace(module.mpi_ops)
    from hvd_elastic_ext.worker.comms.horovod import fence_horovod

    fence_horovod()
    if os.environ.get(ADOPT) == "1":
        _adopt(module)


HOOKS: Final = {
    "horovod.common.basics": basics,
    "horovod.common.elastic": elastic,
    "horovod.torch": torch,
}
"""What to call with which module."""


class Updates:
    """Hands host updates on to everybody who listens at Horovod's notification manager.

    An update carries the number of the world that is to come. It may come twice, or when that world has formed.
    """

    def __init__(self, manager: Any, way: Standby) -> None:
        self._manager = manager
        self._way = way
        self._newest = 0
        self._last = 0.0

    @property
    def pending(self) -> bool:
        """Whether a newer world than the present one is to come."""
        return self._newest > (self._way.generation or 0)

    def __call__(self, message: Tell) -> None:
        """One came in, on the link's thread."""
        seconds = message.get("in_s")
        update = HostsUpdate(
            generation=int(message["generation"]),
            reason=str(message.get("reason") or ""),
            deadline=None if seconds is None else time.monotonic() + float(seconds),
        )
        known = update.generation <= max(self._newest, self._way.generation or 0)
        self._newest = max(self._newest, update.generation)
        for listener in list(self._manager._listeners):
            if is_ours(listener) and not known:
                listener.on_hosts_update(update)
            elif message.get("leave") or not known:
                self.tell_stock(listener)  # whoever is to leave stops, whatever has been said before

    def tell_stock(self, listener: Any) -> None:
        """Tell a State of Horovod's own, so that it never skips the sync nor takes the news for old ones."""
        from horovod.runner.elastic.worker import HostUpdateResult

        # Times are compared with those of other hosts: whatever their clocks say, this one is later.
        self._last = max(self._last, float(getattr(listener, "_last_updated_timestamp", 0)), time.time()) + 1
        listener.on_hosts_updated(self._last, HostUpdateResult.mixed)


def is_ours(listener: Any) -> bool:
    """Whether a listener knows numbered updates, and keeps those that come while a world forms."""
    return hasattr(listener, "on_hosts_update")


class StockLoop:
    """Horovod's loop around one training function: entered from the park, and said how it ends."""

    def __init__(self, run_fn: Callable[..., Any], func: Callable[..., Any], *, reset: Callable[[], None]) -> None:
        self._func = func
        self._reset = reset
        self._way = standby.current()
        self._loop = run_fn(self._train, reset)

    def run(self, state: Any, *args: Any, **kwargs: Any) -> Any:
        with self._way.training():
            begin(state, self._reset)
            result = self._loop(state, *args, **kwargs)
            returned(state)
            return result

    def _train(self, state: Any, *args: Any, **kwargs: Any) -> Any:
        self._way.synced()
        updates = self._way.updated
        if isinstance(updates, Updates) and updates.pending and not is_ours(state):
            updates.tell_stock(state)  # it forgets, at the end of a reset, what came while the next world formed
        return self._func(state, *args, **kwargs)


def returned(state: Any) -> None:
    """At the end of a training loop: a State of ours commits what it was left with."""
    getattr(state, "_returned", _nothing)()


def _nothing() -> None:
    """What a State of Horovod's own has to do at the end."""


def begin(state: Any, rejoin: Callable[[], None]) -> None:
    """At the entry of a training loop: a process in standby parks here, and goes live."""
    way = standby.current()
    if not way.parks:
        return
    way.park()
    _forget_reductions(state)
    _rejoin(rejoin)
    here = sys.modules["horovod.torch"]
    if way.saw_otherwise(tuple(getattr(here, name)() for name in Place._fields)):
        # What was built for another place is told, as in any change of worlds.
        state.on_reset()


def _rejoin(rejoin: Callable[[], None]) -> None:
    """Go live. A world that does not form is left, and the next one waited for."""
    from horovod.common.exceptions import HorovodInternalError

    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return rejoin()
        except (HorovodInternalError, ValueError) as error:
            if attempt == _ATTEMPTS:
                raise
            log.warning("joining the job failed, trying again: %s", error)
        time.sleep(0.5 * attempt)
    return None


def _forget_reductions(state: Any) -> None:
    """What was begun in the world of one has no end in another."""
    from hvd_elastic_ext.worker.optim.reductions import forget_reductions

    for value in list(vars(state).values()):
        if hasattr(value, "_allreduce_delay"):
            forget_reductions(value)


def _run_fn(horovods: Callable[..., Any], func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    loop = StockLoop(horovods, func, reset=reset)

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        return loop.run(state, *args, **kwargs)

    return wrapper


def _shown(name: str, real: Callable[[], int]) -> Callable[[], int]:
    index = Place._fields.index(name)

    @functools.wraps(real)
    def shown() -> int:
        place = standby.planned()
        return real() if place is None else place[index]

    return shown


def _shown_local_rank(shown: Callable[[], int]) -> Callable[[], int]:
    """Where slots have devices, a process's local rank leads to its own as long as it lives."""

    @functools.wraps(shown)
    def local_rank() -> int:
        kept = standby.local_rank()
        return shown() if kept is None else kept

    return local_rank


def _adopt(module: Any) -> None:
    """Give scripts written for Horovod's own classes ours. Horovod's modules go on using theirs inside."""
    import hvd_elastic_ext.torch as ours

    for name in ("TorchState", "ElasticSampler", "run"):
        setattr(module.elastic, name, getattr(ours, name))


def _refuse(comm: Any, process_sets: Any) -> None:
    for name, value in (("comm", comm), ("process_sets", process_sets)):
        if value is not None and value != []:
            raise UsageError(
                f"hvd.init({name}=…): an elastic job cannot have it, Horovod does not bring it through a resize; "
                "call hvd.init() without it, or start the job without hvd-elastic"
            )
    for name in ("HOROVOD_AUTOTUNE", "HOROVOD_DYNAMIC_PROCESS_SETS"):
        if os.environ.get(name, "0").strip() not in ("", "0"):  # the script's own doing: the launcher refuses them
            raise UsageError(
                f"{name}={os.environ[name]}: an elastic job cannot have it, Horovod crashes on the first resize with "
                "it; take it out of the script, or start the job without hvd-elastic"
            )


def _no_service(*args: Any, **kwargs: Any) -> None:
    """Stand in for the start of Horovod's notification service."""


def _marked(module: ModuleType) -> bool:
    """Whether this module has been changed already; from now on it has."""
    was = getattr(module, _DONE, False)
    setattr(module, _DONE, True)
    return bool(was)


def _watch_pace(mpi_ops: Any) -> None:
    """Time steps and waits, for the beats."""
    from torch.optim import optimizer

    ours = standby.current().link
    pace = Pace(ours.vitals, say=ours.say)
    mpi_ops.mpi_lib = pace.library(mpi_ops.mpi_lib)
    optimizer.register_optimizer_step_pre_hook(pace.before_step)
    optimizer.register_optimizer_step_post_hook(pace.after_step)
