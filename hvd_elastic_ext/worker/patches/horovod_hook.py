"""Patches of Horovod's modules, for a process with a link to an agent.

Each is called when its module is loaded: by the import hook, or by ``hvd_elastic_ext.torch`` if Horovod was imported
before. Without Horovod, :func:`install` gives the process the functions of the patches that it needs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from hvd_elastic_ext.core.clock import Clock, SystemClock
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.core.messages.slot_protocol import COLLECTIVES, ENGINE
from hvd_elastic_ext.worker.patches import horovod_collectives, keras3, tensorflow_steps
from hvd_elastic_ext.worker.patches.horovod_collectives import PUBLIC_MODULES
from hvd_elastic_ext.worker.process import error_report, link, standby
from hvd_elastic_ext.worker.process.link import Message
from hvd_elastic_ext.worker.process.standby import ATTEMPT_PAUSE_S, ATTEMPTS, Standby
from hvd_elastic_ext.worker.process.steps import StepTimer, preparing
from hvd_elastic_ext.worker.sync.host_updates import HostsUpdate

log = logging.getLogger(__name__)

ADOPT: Final = "HVD_ELASTIC_ADOPT"
REPLAY: Final = "HVD_ELASTIC_REPLAY"
STOCK: Final = "hvd_elastic_ext.worker.stock"

OBJECTS: Final = ("broadcast_object", "allgather_object")
"""Functions of Horovod that send objects of the script."""
_DONE: Final = "hvd_elastic_hooked"
_COMPLETE: Final = "hvd_elastic_complete"
_MIXED: Final = 3
"""Horovod's ``HostUpdateResult.mixed``: hosts may have been added and removed."""


def install() -> None:
    """Patch the Horovod modules that are loaded, if this process has a link. A second call changes nothing.

    Without Horovod: pass host updates on to our States, and measure the time of steps.
    """
    if not _linked():
        return
    for name, change in HOOKS.items():
        module = sys.modules.get(name)
        if module is not None:
            change(module)
    from hvd_elastic_ext.worker import stock

    if not stock.PRESENT and not _marked(stock):
        process = standby.current()
        process.on_update = HostUpdates(stock.notification_manager, process)
        _time_steps(None)


def basics(module: Any) -> None:
    """Patch ``horovod.common.basics``: ``init`` of every framework's module."""
    if _marked(module):
        return
    horovods = module.HorovodBasics.init

    @functools.wraps(horovods)
    def init(self: Any, comm: Any = None, process_sets: Any = None) -> None:
        process = standby.current()
        if process.fixed_world:
            raise UsageError(
                f"hvd.init(): with --engine {os.environ[ENGINE]} Horovod has no world; call elastic.init() instead "
                "(with mpirun it needs mpi4py), or leave --engine out"
            )
        if process.link.connected and COLLECTIVES in os.environ:
            raise UsageError(
                f"hvd.init(): --engine {os.environ[COLLECTIVES]} starts no world of Horovod's; call elastic.init() "
                "instead, or leave --engine out"
            )
        if not process.link.connected or self.is_initialized():
            horovods(self, comm, process_sets)
            return
        _refuse(comm, process_sets)
        has_loop = any(name in sys.modules for name in PUBLIC_MODULES)
        process.init(functools.partial(horovods, self), self.shutdown, later=has_loop)
        if not process.parks:
            process.entered(self.rank(), self.size())

    module.HorovodBasics.init = init


def elastic(module: Any) -> None:
    """Patch ``horovod.common.elastic``: the stock loop, and host updates."""
    if _marked(module):
        return
    manager = module.notification_manager
    run_fn = functools.partial(_run_fn, manager)
    for name in ("horovod.common.elastic", "horovod.torch.elastic", "horovod.tensorflow.elastic"):
        user = sys.modules.get(name)
        if user is not None and hasattr(user, "run_fn"):
            user.__dict__["run_fn"] = run_fn
    # Updates come over the link, so no port is opened and nothing is unpickled.
    manager.init = lambda *args, **kwargs: None
    process = standby.current()
    process.on_update = HostUpdates(manager, process)


def torch(module: Any) -> None:
    """Patch ``horovod.torch``: ranks and sizes that user code sees, safe collectives, and our classes (``--adopt``)."""
    if not hasattr(module, "init") or _marked(module):  # without PyTorch there is nothing to patch
        return
    for name in Place._fields:
        setattr(module, name, _shown(name, getattr(module, name)))
    module.local_rank = _shown_local_rank(module.local_rank)
    # Stock samplers and optimizers that a parked process makes use the planned place, too.
    # All other code of Horovod needs the real place.
    for inner, names in ((module.elastic.sampler, ("rank", "size")), (module.optimizer, ("size",))):
        for name in names:
            setattr(inner, name, getattr(module, name))
    broadcast = _not_a_step(module.broadcast_optimizer_state)
    for user in (module, module.functions, module.elastic.state):
        user.broadcast_optimizer_state = broadcast
    for name in OBJECTS:
        setattr(module, name, _named_alike(getattr(module, name)))
    horovod_collectives.wrap(module)
    ours = sys.modules.get(STOCK)
    if ours is None or hasattr(ours, "PRESENT"):
        complete()  # otherwise STOCK has imported Horovod, and calls this when its own classes exist


def complete() -> None:
    """Apply the patches of ``horovod.torch`` that need our own classes: safe collectives, timed waits, ``--adopt``.

    A second call changes nothing.
    """
    module = sys.modules.get("horovod.torch")
    if module is None or not hasattr(module, _DONE) or hasattr(module, _COMPLETE):
        return
    from hvd_elastic_ext.worker.comms.horovod import fence_horovod

    setattr(module, _COMPLETE, True)
    fence_horovod()
    _time_steps(module.mpi_ops)  # the fence has replaced functions of this module
    if os.environ.get(ADOPT) == "1":
        _adopt(module)


def tensorflow(module: Any) -> None:
    """Patch ``horovod.tensorflow``, and the modules for Keras: ranks and sizes that user code sees, worlds that are
    safe to leave, and our classes (``--adopt``)."""
    if not hasattr(module, "init") or _marked(module):
        return
    keras3.refuse_keras3(module)
    keras3.use_keras2(module)
    # Horovod's own code uses the functions of mpi_ops, or operations that ask for the size when they run.
    for name in Place._fields:
        setattr(module, name, _shown(name, getattr(module, name)))
    module.local_rank = _shown_local_rank(module.local_rank)
    # Horovod's own takes an UnknownError that names no collective for the end of training, and says nothing. What the
    # loss of a peer is, _run_fn knows.
    loops = sys.modules["horovod.tensorflow.elastic"]
    module.elastic.run = lambda func: loops.run_fn(func, loops._reset)
    if module.__name__ == "horovod.tensorflow":
        from hvd_elastic_ext.worker.comms import horovod_tensorflow

        horovod_tensorflow.fence_horovod()
        for name in OBJECTS:
            setattr(module, name, _named_alike(getattr(module, name)))
        horovod_collectives.wrap(module, untraced=horovod_tensorflow.untraced)
        _time_steps_of_tensorflow(horovod_tensorflow)
        if not hasattr(module, "BroadcastGlobalVariablesHook"):
            module.BroadcastGlobalVariablesHook = _broadcast_hook(module)
    if os.environ.get(ADOPT) == "1":
        _adopt_tensorflow(module)


def torch_distributed(module: Any) -> None:
    """Patch ``torch.distributed.distributed_c10d`` under ``--engine torch``: a script that would join a world which the
    environment describes is told what to call."""
    if COLLECTIVES not in os.environ or _marked(module):
        return
    torchs = module.init_process_group

    @functools.wraps(torchs)
    def init_process_group(backend: Any = None, init_method: Any = None, *args: Any, **options: Any) -> Any:
        describes = init_method not in (None, "env://") or options.get("store") is not None
        if not describes and "RANK" not in os.environ:
            raise UsageError(
                f"init_process_group(): --engine {os.environ[COLLECTIVES]} forms a new world in the same processes; "
                "call elastic.init() instead and train in a function with @elastic.run, or give --engine torchrun, "
                "which starts new processes for each world"
            )
        return torchs(backend, init_method, *args, **options)

    for user in (module, sys.modules.get("torch.distributed")):
        if hasattr(user, "init_process_group"):
            user.__dict__["init_process_group"] = init_process_group


def _once(change: Callable[[Any], None]) -> Callable[[Any], None]:
    """The same patch, which changes a module only once."""
    return lambda module: None if _marked(module) else change(module)


TORCH_DISTRIBUTED: Final = "torch.distributed.distributed_c10d"
HOOKS: Final = {
    "horovod.common.basics": basics,
    "horovod.common.elastic": elastic,
    "horovod.torch": torch,
    "horovod.tensorflow": tensorflow,
    "horovod.tensorflow.keras": tensorflow,
    "horovod.keras": tensorflow,
    "keras.src.optimizers.optimizer": _once(tensorflow_steps.keras_optimizer),
    "keras.src.optimizers.legacy.optimizer_v2": _once(tensorflow_steps.keras_optimizer),
    "tf_keras.src.optimizers.optimizer": _once(tensorflow_steps.keras_optimizer),
    "tf_keras.src.optimizers.legacy.optimizer_v2": _once(tensorflow_steps.keras_optimizer),
    "tensorflow.python.autograph.core.config": _once(tensorflow_steps.autograph),
    "tensorflow.python.training.monitored_session": _once(tensorflow_steps.monitored_session),
    TORCH_DISTRIBUTED: torch_distributed,
}
"""The patch for each module."""


class HostUpdates:
    """Passes host updates on to all listeners of Horovod's notification manager.

    An update contains the number of the next world. It may come twice, or after that world has formed.
    """

    def __init__(self, manager: Any, process: Standby) -> None:
        self._manager = manager
        self._process = process
        self._newest = 0
        self._last = 0.0

    @property
    def pending(self) -> bool:
        """Whether a newer world than the present one is coming."""
        return self._newest > (self._process.generation or 0)

    def __call__(self, message: Message) -> None:
        """Receive an update, on the link's thread."""
        seconds = message.get("in_s")
        update = HostsUpdate(
            generation=int(message["generation"]),
            reason=str(message.get("reason") or ""),
            deadline=None if seconds is None else time.monotonic() + float(seconds),
        )
        is_known = update.generation <= max(self._newest, self._process.generation or 0)
        self._newest = max(self._newest, update.generation)
        for listener in list(self._manager._listeners):
            if takes_numbered_updates(listener) and not is_known:
                listener.on_hosts_update(update)
            elif message.get("leave") or not is_known:
                self.notify_stock_state(listener)  # also a known one, if the process must leave

    def notify_stock_state(self, listener: Any) -> None:
        """Notify a State of Horovod's own in such a way that it does not skip the sync or ignore the update as old."""
        # Horovod compares times of several hosts: this time must be later, even if their clocks differ.
        self._last = max(self._last, float(getattr(listener, "_last_updated_timestamp", 0)), time.time()) + 1
        listener.on_hosts_updated(self._last, _MIXED)


def takes_numbered_updates(listener: Any) -> bool:
    """Whether a listener accepts numbered updates, and keeps those that come while a world forms."""
    return hasattr(listener, "on_hosts_update")


@contextlib.contextmanager
def in_training(
    state: Any,
    rejoin: Callable[[], None],
    *,
    lost_by: Callable[[BaseException], bool] = error_report.names_lost_collective,
) -> Iterator[None]:
    """Context around a training loop. A process that is not in a world with others parks first, and then joins the job.
    ``lost_by``: whether an error of a reset callback is that of a lost peer.

    At the end of the loop a State of ours commits its final values, and the result of the loop is reported to the
    launcher. A script may also end training by ``sys.exit(0)``.
    """
    from hvd_elastic_ext.worker.calls.calls import current as current_calls

    calls, process = current_calls(), standby.current()
    with process.training(calls.number, collectives=calls.has_record):
        _go_live(state, rejoin, call=calls.number, is_over=lambda: calls.finished() is not None, lost_by=lost_by)
        _tell_of_variables_outside(state)
        try:
            yield
        except SystemExit as end:
            if process.ends_training(end):
                getattr(state, "_left", lambda: None)()
            raise
        getattr(state, "_returned", lambda: None)()


def _go_live(
    state: Any,
    rejoin: Callable[[], None],
    *,
    call: int,
    is_over: Callable[[], bool],
    lost_by: Callable[[BaseException], bool],
) -> None:
    """Park, then join the job and run the reset callbacks. After a loss in these join the next world."""
    from hvd_elastic_ext.worker.state.loop import drop_steps, losses_told
    from hvd_elastic_ext.worker.stock import HorovodInternalError, HostsUpdatedInterrupt

    process = standby.current()
    if not process.parks:
        return
    _forget_reductions(state)
    join_alone = _leave_world_of_one()
    try:
        process.park(call=call, is_over=is_over)
    except standby.CallOver:
        join_alone()  # the script goes on alone, to its next call
        raise
    for attempt in range(1, ATTEMPTS + 1):
        _rejoin(rejoin)
        if not (_meets_others_in_resets() or process.was_shown_another_place(_real_place())):
            return
        try:
            with losses_told(lost_by):
                state.on_reset()  # objects built for another place are reset, as in any change of worlds
            return
        except (HorovodInternalError, HostsUpdatedInterrupt) as error:
            if attempt == ATTEMPTS:
                raise
            log.warning("joining the job failed, trying again: %s", error)
        drop_steps(state)
        time.sleep(ATTEMPT_PAUSE_S * attempt)


def _tell_of_variables_outside(state: Any) -> None:
    """Say if variables that a script has broadcast before its loop are not in the State that is synced now."""
    if not horovod_collectives.has_kept_own() or (keeper := getattr(state, "_keeper", None)) is None:
        return
    from hvd_elastic_ext.worker.parts.tensorflow_parts import VariablesPart

    parts = [part for part in keeper.parts if isinstance(part, VariablesPart)]
    horovod_collectives.tell_of_variables_outside(variable for part in parts for variable in part.variables)


def _meets_others_in_resets() -> bool:
    """Whether a newcomer runs the reset callbacks because the others do. Those of Horovod's examples for TensorFlow
    train a step together with what newcomers do before their loop, which one of ours has done in a world of one."""
    from hvd_elastic_ext.worker import stock

    return stock.FRAMEWORK == "tensorflow"


def _real_place() -> tuple[int, ...]:
    """The place of this process, as far as its library tells it."""
    from hvd_elastic_ext.worker.comms import current_world

    comms = current_world.comms()
    if comms is not None:
        return comms.rank(), comms.size()
    horovods = sys.modules.get("horovod.torch") or sys.modules.get("horovod.tensorflow")
    return tuple(getattr(horovods, name)() for name in Place._fields)


def _leave_world_of_one() -> Callable[[], None]:
    """Leave it while this process parks. Return a function that enters one again."""
    from hvd_elastic_ext.worker.comms import current_world

    return current_world.leave_world_of_one()


def _rejoin(rejoin: Callable[[], None]) -> None:
    """Join the job. If a world does not form, leave it and wait for the next one."""
    from hvd_elastic_ext.worker.stock import HorovodInternalError

    for attempt in range(1, ATTEMPTS + 1):
        try:
            return rejoin()
        except (HorovodInternalError, ValueError) as error:
            if attempt == ATTEMPTS:
                raise
            log.warning("joining the job failed, trying again: %s", error)
        time.sleep(ATTEMPT_PAUSE_S * attempt)
    return None


def _forget_reductions(state: Any) -> None:
    """Forget reductions that began in the world of one."""
    from hvd_elastic_ext.worker.optim.averaging import forget_reductions

    for value in list(vars(state).values()):
        if hasattr(value, "_allreduce_delay"):
            forget_reductions(value)


def _run_fn(
    manager: Any, func: Callable[..., Any], reset: Callable[[], None], *, clock: Clock | None = None
) -> Callable[..., Any]:
    """Return a loop in place of Horovod's around one training function. It begins after parking, and reports its end.

    It is ours: Horovod's ends the script if a peer is lost in a reset callback, in a world that does not form, or, with
    TensorFlow, in the sync. ``manager``: Horovod's notification manager.
    """
    process = standby.current()

    def rejoin() -> None:
        from hvd_elastic_ext.worker.stock import HorovodInternalError

        try:
            reset()
        except ValueError as error:
            raise HorovodInternalError(f"joining the next world failed: {error}") from error

    def loop(state: Any, train: Callable[[], Any]) -> Any:
        from hvd_elastic_ext.worker.state.loop import losses_told, run

        def trained() -> Any:
            process.synced()
            updates = process.on_update
            if isinstance(updates, HostUpdates) and updates.pending and not takes_numbered_updates(state):
                updates.notify_stock_state(state)  # a reset drops the updates that came meanwhile
            with losses_told(error_report.names_lost_collective):
                value = train()
                getattr(state, "_finish_rounds", lambda: None)()
                return value

        if os.environ.get(REPLAY) == "1" and not takes_numbered_updates(state):
            log.warning(
                "run --replay does nothing for a State of Horovod's own (%s): lost steps are trained again as without "
                "it; use that of hvd_elastic_ext, or give --adopt, too",
                type(state).__name__,
            )
        manager.init()
        manager.register_listener(state)
        try:
            lost_by = error_report.names_lost_collective
            return run(state, trained, reset=rejoin, clock=clock or SystemClock(), lost_by=lost_by)
        finally:
            manager.remove_listener(state)

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        from hvd_elastic_ext.worker.state import rehearsal
        from hvd_elastic_ext.worker.state.loop import one_call, rehearse_if_due

        def train() -> Any:
            return func(state, *args, **kwargs)

        if rehearsal.is_under_way():
            return train()  # within the one that is rehearsed: it must not join the others
        rehearse_if_due(state, train)
        return one_call(func, state, whole=lambda given: in_training(given, reset), run=lambda: loop(state, train))

    return wrapper


def _not_a_step(horovods: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of Horovod that may call ``step()`` of an optimizer only to make its state."""

    @functools.wraps(horovods)
    def prepares(*args: Any, **kwargs: Any) -> Any:
        with preparing():
            return horovods(*args, **kwargs)

    return prepares


def _named_alike(horovods: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of Horovod that has one default name on all ranks. Horovod takes the type of the object, and
    waits for ever if only rank 0 has one and the others give None.
    """
    signature = inspect.signature(horovods)

    @functools.wraps(horovods)
    def named(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        if given.arguments.get("name") is None:
            given.arguments["name"] = horovods.__name__
        return horovods(*given.args, **given.kwargs)

    return named


def _shown(name: str, real: Callable[[], int]) -> Callable[[], int]:
    index = Place._fields.index(name)

    @functools.wraps(real)
    def shown() -> int:
        place = standby.planned()
        return real() if place is None else place[index]

    return shown


def _shown_local_rank(shown: Callable[[], int]) -> Callable[[], int]:
    """Return a ``local_rank`` that never changes, if slots have devices: it selects the device of the process."""

    @functools.wraps(shown)
    def local_rank() -> int:
        kept = standby.local_rank()
        return shown() if kept is None else kept

    return local_rank


def _adopt(module: Any) -> None:
    """Give our classes to scripts that use Horovod's. Horovod's own modules keep Horovod's classes."""
    import hvd_elastic_ext.torch as ours

    for name in ("TorchState", "ElasticSampler", "run"):
        setattr(module.elastic, name, getattr(ours, name))


def _broadcast_hook(horovod: Any) -> Any:
    """The hook that scripts in the style of TensorFlow 1 give to a session. Horovod looks for its base class in
    ``tf.estimator``, which TensorFlow 2.16 and later do not have; it is also elsewhere."""
    import tensorflow as tf

    class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        """Broadcast all global variables from ``root_rank`` once the session is there."""

        def __init__(self, root_rank: int, device: str = "") -> None:
            super().__init__()
            self.root_rank, self.device, self.operation = root_rank, device, None

        def begin(self) -> None:
            with tf.device(self.device):
                self.operation = horovod.broadcast_global_variables(self.root_rank)

        def after_create_session(self, session: Any, coord: Any) -> None:
            session.run(self.operation)

    return BroadcastGlobalVariablesHook


def _adopt_tensorflow(module: Any) -> None:
    """The same for scripts of TensorFlow and Keras."""
    ours: Any
    if module.__name__ == "horovod.tensorflow":
        import hvd_elastic_ext.tensorflow as ours
    else:
        import hvd_elastic_ext.keras as ours
    for name in getattr(ours, "__all__", ()):  # none while a script imports that module itself
        if hasattr(module.elastic, name):
            setattr(module.elastic, name, getattr(ours, name))


def _refuse(comm: Any, process_sets: Any) -> None:
    for name, value in (("comm", comm), ("process_sets", process_sets)):
        if value is not None and value != []:
            raise UsageError(
                f"hvd.init({name}=…): an elastic job cannot have it, because Horovod loses it in a resize; "
                "call hvd.init() without it, or start the job without hvd-elastic"
            )
    for name in ("HOROVOD_AUTOTUNE", "HOROVOD_DYNAMIC_PROCESS_SETS"):
        if os.environ.get(name, "0").strip() not in ("", "0"):  # the script has set it: the launcher refuses it
            raise UsageError(
                f"{name}={os.environ[name]}: an elastic job cannot have it, because Horovod crashes on the first "
                "resize with it; take it out of the script, or start the job without hvd-elastic"
            )


def _linked() -> bool:
    return link.is_announced(os.environ) or standby.current().link.connected


def _marked(module: ModuleType) -> bool:
    """Return whether this module was patched before, and mark it."""
    was = getattr(module, _DONE, False)
    setattr(module, _DONE, True)
    return bool(was)


def _time_steps(mpi_ops: Any) -> None:
    """Measure the time of steps for the heartbeats, and of waits in Horovod's ``mpi_ops`` if there is one."""
    from torch.optim import optimizer

    from hvd_elastic_ext.worker.comms import horovod
    from hvd_elastic_ext.worker.optim.step_waits import measure

    process = standby.current()
    on_step = _tell_if_alone(horovod) if mpi_ops is not None else lambda steps: None
    timer = StepTimer(process.link.status, report=process.link.send, on_step=on_step)
    process.step_timer = timer
    if mpi_ops is not None:
        mpi_ops.mpi_lib.around_wait = timer.waiting
    measure(lambda: process.step_timer)
    optimizer.register_optimizer_step_pre_hook(timer.before_step)
    optimizer.register_optimizer_step_post_hook(timer.after_step)


def _time_steps_of_tensorflow(comms: Any) -> None:
    """The same for ``horovod.tensorflow``, whose steps and waits may be in a graph. ``comms``: our module for it."""
    import tensorflow as tf

    from hvd_elastic_ext.worker.comms.tensorflow_waits import TensorFlowWaits

    process = standby.current()
    process.step_timer = StepTimer(process.link.status, report=process.link.send, on_step=_tell_if_alone(comms))
    has_gpu = functools.cache(lambda: bool(tf.config.list_physical_devices("GPU")))
    process.link.status.waits = TensorFlowWaits(comms.threads_of_horovod, has_gpu).look


def _tell_if_alone(comms: Any) -> Callable[[int], None]:
    """Return a function to call after steps of a script without a State of ours, with their number, to detect ranks
    that train alone. Our States do this themselves. ``comms``: our module for the Horovod of this process."""
    from hvd_elastic_ext.core.clock import SystemClock
    from hvd_elastic_ext.worker.sync.training_alone import TrainingAlone

    def record(event: str, **fields: Any) -> None:
        standby.current().link.send("record", event=event, fields=fields)

    alone = TrainingAlone(comms.HorovodComms(), SystemClock(), record)

    def stepped(steps: int) -> None:
        if not comms.is_initialised():
            alone.world_ended()
            return
        try:
            alone.stepped(steps)
        except ValueError:
            if threading.current_thread() is threading.main_thread():
                raise  # else this is the thread of the heartbeats, and the world has ended meanwhile

    return stepped
