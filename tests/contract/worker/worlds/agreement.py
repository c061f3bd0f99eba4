"""When ranks end their world: all at the same step, never inside one, and with nothing left under way."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import horovod.torch as hvd
import torch
from horovod.common.elastic import notification_manager
from horovod.common.exceptions import HorovodInternalError
from horovod.runner.elastic.worker import HostUpdateResult
from torch import nn

from hvd_elastic_ext.worker.sync.host_updates import HostsUpdate
from tests.contract.worker.worlds.registry import check, interrupt_of, notify, prepare_another_world


def averaged(passes: int = 1) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    return net, hvd.DistributedOptimizer(optimizer, net.named_parameters(), backward_passes_per_step=passes)


def backward(net: nn.Module) -> None:
    net(torch.ones(1, 2)).sum().backward()


@check
def notice_before_there_is_a_state_counts(State: Any) -> dict[str, Any]:
    """The first check of its process: nobody listens yet."""
    if hvd.rank() == 0:
        notification_manager.handle_hosts_updated(1, HostUpdateResult.added)
    state = State(batch=0)
    notification_manager.register_listener(state)
    try:
        return {"seen": interrupt_of(state) is not None}
    finally:
        notification_manager.remove_listener(state)


MOMENTS = ("before the backward pass", "before the step", "after the step")


@check
def notice_to_one_rank_ends_the_world_at_one_step(State: Any) -> dict[str, Any]:
    """By moment of the notice in step 3: the step after which each rank is told."""
    seen = {}
    for moment in MOMENTS:
        net, optimizer = averaged()
        state = State(model=net, optimizer=optimizer)
        state.sync()
        for step in range(8):
            for now in MOMENTS:
                if now == "before the step":
                    backward(net)
                if now == "after the step":
                    optimizer.step()
                    optimizer.zero_grad()
                if now == moment and step == 3:
                    notify(state, on=hvd.size() - 1)
            if interrupt_of(state) is not None:
                break
        seen[moment] = step
        state.on_reset()
    return seen


@check
def notice_at_any_moment_ends_the_world_at_one_step(State: Any) -> dict[str, Any]:
    chance = random.Random(hvd.rank())
    ended = []
    for _ in range(15):
        net, optimizer = averaged()
        state = State(model=net, optimizer=optimizer)
        state.sync()
        timer = threading.Timer(chance.uniform(0.0, 0.02), notify, [state], {"on": hvd.size() - 1})
        timer.start()
        step = 0
        while True:
            backward(net)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if interrupt_of(state) is not None:
                break
        timer.join()
        ended.append(step)
        state.on_reset()
    return {"ended": ended}


@check
def no_interrupt_between_backward_passes(State: Any) -> dict[str, Any]:
    net, optimizer = averaged(passes=3)
    state = State(model=net, optimizer=optimizer)
    state.sync()
    told_after = []
    passes = 0
    for step in range(4):
        for number in range(3):
            backward(net)
            passes += 1
            if (step, number) == (1, 0):
                notify(state, on=0)
            if number == 2:
                optimizer.step()
                optimizer.zero_grad()
            if interrupt_of(state) is not None:
                told_after.append(passes)
                state.on_reset()
    return {"told_after": told_after}


@check
def a_notice_that_comes_twice_is_one(State: Any) -> dict[str, Any]:
    state = State(batch=0)
    seen = []
    for update in (HostsUpdate(4), HostsUpdate(4), HostsUpdate(3), HostsUpdate(5)):
        if hvd.rank() == 0:
            state.on_hosts_update(update)
        seen.append(interrupt_of(state) is not None)
        if seen[-1]:
            state.on_reset()
    return {"seen": seen}


@check
def what_is_under_way_is_dropped_with_its_world(State: Any) -> dict[str, Any]:
    """Ranks leave their world with an agreement under way; in the next one nothing is mixed up with it."""
    prepare_another_world()
    net, optimizer = averaged()
    state = State(model=net, optimizer=optimizer, batch=0)
    state.sync()
    try:
        for step in range(2):
            backward(net)
            if step:
                notify(state, on=0)
            optimizer.step()  # may find that the other rank has left already
            optimizer.zero_grad()
        raise HorovodInternalError("a peer was lost, and nobody asked since the last step")
    except HorovodInternalError:
        state.restore()
    hvd.shutdown()
    hvd.init()
    state.on_reset()
    total = hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum, name="total").item()
    state.sync()
    again = []
    for _ in range(3):
        backward(net)
        optimizer.step()
        optimizer.zero_grad()
        again.append(interrupt_of(state) is not None)
    return {"total": total, "again": again, "weight": net.weight.tolist()}


@check
def who_is_ahead_waits_for_those_behind(State: Any) -> dict[str, Any]:
    """One rank leaves its world as soon as it may; another one has yet to finish the step."""
    prepare_another_world()
    net, optimizer = averaged()
    state = State(model=net, optimizer=optimizer)
    state.sync()
    steps, interrupted = 0, False
    try:
        while not interrupted:
            backward(net)
            optimizer.synchronize()
            if steps and hvd.rank() == 1:
                time.sleep(0.3)
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
            if not steps:
                notify(state, on=0)
            steps += 1
            interrupted = interrupt_of(state) is not None
        told = "interrupted"
    except HorovodInternalError:
        told = "lost"
    hvd.shutdown()
    hvd.init()
    return {"told": told, "steps": steps}


@check
def who_is_done_first_may_leave_at_once(State: Any) -> dict[str, Any]:
    """One rank is done and ends its world; another one has all its gradients, but has yet to take the last step."""
    prepare_another_world()
    net, optimizer = averaged()
    state = State(model=net, optimizer=optimizer, batch=0)
    state.sync()
    try:
        for batch in range(1, 4):
            backward(net)
            optimizer.synchronize()
            if batch == 3 and hvd.rank() == 1:
                time.sleep(0.5)
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
            state.batch = batch
            state.commit()
        told = "done"
    except HorovodInternalError:
        told = "lost"
    hvd.shutdown()
    hvd.init()
    return {"told": told, "batch": state.batch}


@check
def an_optimizer_steps_on_after_its_state(State: Any) -> dict[str, Any]:
    """Two States over one optimizer, one after the other, and a world that ends without the first one hearing of it."""
    net, optimizer = averaged()
    first = State(model=net, optimizer=optimizer, stage=1)
    first.sync()
    backward(net)
    optimizer.step()  # something is under way now
    prepare_another_world()
    hvd.shutdown()
    hvd.init()
    second = State(model=net, optimizer=optimizer, stage=2)
    second.sync()
    steps = 0
    for _ in range(3):
        backward(net)
        optimizer.step()
        second.check_host_updates()
        steps += 1
    first.sync()  # the first one again: it has forgotten its world
    backward(net)
    optimizer.step()
    return {"steps": steps + 1, "fingerprint": first.fingerprint()}
