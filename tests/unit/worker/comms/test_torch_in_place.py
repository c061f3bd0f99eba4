"""The store of a world of torch, by the rendezvous that all engines share, and who counts as lost there."""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Question, Rendezvous, RendezvousAnswer, Seat
from hvd_elastic_ext.worker.comms import torch_distributed, torch_in_place
from hvd_elastic_ext.worker.comms.torch_in_place import AgentStore, InPlaceComms, WorldLost
from hvd_elastic_ext.worker.comms.torch_waits import TorchWaits
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.fence import HOROVOD_FENCE, Fence
from tests.support.processes import run_process

A, B = (ProcessId(Seat("h", slot), 1) for slot in (0, 1))


class Proxy(ThreadingHTTPServer):
    """The launcher's rendezvous behind HTTP, as an agent's proxy for the process ``life`` shows it."""

    daemon_threads = True

    def __init__(
        self, rendezvous: Rendezvous, lock: threading.Lock, open_ones: dict[Any, Queue[RendezvousAnswer]]
    ) -> None:
        self.rendezvous, self.lock, self.open = rendezvous, lock, open_ones
        self.life, self.count, self.now = A, 0, 0.0
        super().__init__(("127.0.0.1", 0), Handler)

    def ask(self, method: str, path: str, body: bytes) -> RendezvousAnswer:
        waits: Queue[RendezvousAnswer] = Queue()
        with self.lock:
            self.count += 1
            number = self.count
            self.open[self.life, number] = waits
            self.pass_on(self.rendezvous.ask(Question(self.life, number, method, path, body), self.now))
        return waits.get(timeout=30)

    def pass_on(self, answers: list[RendezvousAnswer]) -> None:
        for answer in answers:
            self.open.pop((answer.life, answer.number)).put(answer)


class Handler(BaseHTTPRequestHandler):
    server: Proxy

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.server.ask(self.command, self.path, body)
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = do_PUT = _answer

    def log_message(self, *_: object) -> None:
        pass


class World:
    """Two processes of one world, each with its proxy."""

    def __init__(self) -> None:
        self.rendezvous, lock, waiting = Rendezvous(), threading.Lock(), dict[Any, Queue[RendezvousAnswer]]()
        self.rendezvous.form(1, [A, B])
        self.proxies = [Proxy(self.rendezvous, lock, waiting) for _ in (A, B)]
        for proxy, life in zip(self.proxies, (A, B), strict=True):
            proxy.life = life
            self.rendezvous.ask_for_rank(life, 0)
            threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
        self.rendezvous.assign_ranks([A, B])
        self.stores = [AgentStore(proxy.server_address[1]) for proxy in self.proxies]

    def held(self) -> int:
        return len(self.proxies[0].open)

    def answer(self, answers: list[RendezvousAnswer]) -> None:
        with self.proxies[0].lock:
            self.proxies[0].pass_on(answers)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for proxy in made.proxies:
        proxy.shutdown()
        proxy.server_close()


def test_what_one_process_sets_the_others_get_with_any_name_and_any_bytes(world: World) -> None:
    one, other = world.stores
    one.set("0//cpu//0/0 ?#%é", b"\x00\xff\r\n")
    assert other.get("0//cpu//0/0 ?#%é") == b"\x00\xff\r\n"
    one.set("word", "text")
    assert other.get("word") == b"text"
    other.wait(["word"])


def test_a_question_for_a_key_waits_until_it_is_set(world: World) -> None:
    one, other = world.stores
    got: Queue[bytes] = Queue()
    asking = threading.Thread(target=lambda: got.put(other.get("late")), daemon=True)
    asking.start()
    while not world.held():
        asking.join(0.001)
    one.set("late", b"now")
    assert got.get(timeout=30) == b"now"


def test_a_key_of_a_world_that_is_lost_is_not_waited_for(world: World) -> None:
    failed: Queue[BaseException] = Queue()

    def ask() -> None:
        try:
            world.stores[1].get("never")
        except WorldLost as error:
            failed.put(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    while not world.held():
        asking.join(0.001)
    world.answer(world.rendezvous.give_up())
    assert "never" in str(failed.get(timeout=30))
    with pytest.raises(WorldLost):
        world.stores[0].set("more", b"")


def test_a_key_that_nobody_sets_is_asked_for_again_until_the_time_is_over(world: World) -> None:
    world.stores[0].set("here", b"")
    world.proxies[1].now = -1e9  # so the question is answered by a look at the time that is over
    answers = Queue[str]()

    def ask() -> None:
        with pytest.raises(TimeoutError, match="absent was not set within 0 s") as caught:
            AgentStore(world.proxies[1].server_address[1], timeout_s=0.0).get("absent")
        answers.put(str(caught.value))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    while not world.held():
        asking.join(0.001)
    world.answer(world.rendezvous.due(0.0))
    assert answers.get(timeout=30)
    assert world.stores[1].check(["here"])


def test_a_process_that_enters_world_after_world_keeps_nothing_of_them() -> None:
    model = nn.Linear(4, 4)

    def facts() -> tuple[int, int, int]:
        hooks = sum(len(value._post_accumulate_grad_hooks or ()) for value in model.parameters())  # type: ignore[attr-defined]
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), hooks

    seen = []
    for _ in range(40):
        torch_in_place._join()
        training = nn.parallel.DistributedDataParallel(model)
        training(torch.ones(1, 4)).sum().backward()
        torch_in_place.leave()
        del training
        seen.append(facts())
    torch_in_place._former.clear()
    early, late = zip(*seen[5:10], strict=True), zip(*seen[-5:], strict=True)
    assert all(min(last) <= max(first) for first, last in zip(early, late, strict=True)), seen  # a thread may be ending


IMPORTED_IN_A_WORLD = """
import gc, importlib, types, weakref, torch
from torch import distributed as dist
from hvd_elastic_ext.worker.comms import torch_in_place

torch_in_place._join()
torch.optim.SGD([torch.ones(1, requires_grad=True)])  # torch imports the first module for it
for name in torch_in_place._TAKE_WORLD:
    importlib.import_module(name)
left = weakref.ref(dist.group.WORLD)
torch_in_place.leave()
torch_in_place._former.clear()
print("left" if left() is None else "kept")
torch_in_place._join()
taken = [function for function in gc.get_objects() if isinstance(function, types.FunctionType)
    and dist.group.WORLD in [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]]
print([function.__module__ for function in taken])
print(dist.nn.functional.all_reduce(torch.ones(2)).tolist(), len(dist.nn.functional.all_gather(torch.ones(2))))
torch_in_place.leave()
"""


def test_functions_that_took_the_world_when_they_were_imported_use_the_next_one_in_the_next() -> None:
    with run_process([sys.executable, "-W", "ignore", "-c", IMPORTED_IN_A_WORLD]) as process:
        assert process.wait(60) == 0, process.output
    assert process.stdout.splitlines() == ["left", "[]", "[1.0, 1.0] 1"]


def test_worlds_leave_neither_a_number_of_groups_nor_a_hook_of_errors_behind() -> None:
    before = sys.excepthook
    for failed in range(3):
        dist.distributed_c10d._world.group_count = failed  # as a group leaves it that did not form
        torch_in_place._join()
        assert dist.distributed_c10d._world.group_count == 2
        assert sys.excepthook is before
        assert not HOROVOD_FENCE.is_broken()  # Gloo listens, too
        torch_in_place.leave()


def test_a_script_that_keeps_the_ddp_of_each_world_is_not_stopped_by_it() -> None:
    kept = []
    for _ in range(10):
        torch_in_place._join()
        kept.append(nn.parallel.DistributedDataParallel(nn.Linear(4, 4)))
        kept[-1](torch.ones(1, 4)).sum().backward()
        torch_in_place.leave()
    torch_in_place._former.clear()
    assert all(each.module.weight.grad is not None for each in kept)
    kept.clear()


def test_an_interface_that_this_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")  # to be restored
    monkeypatch.setattr(torch_in_place, "_INTERFACE", "lo:1,lo")
    torch_in_place._choose_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo:1,lo"
    monkeypatch.setattr(torch_in_place, "_INTERFACE", "lo,none0")
    with pytest.raises(UsageError, match=r"GLOO_SOCKET_IFNAME=lo,none0: this machine has no interface none0, only lo"):
        torch_in_place._join()


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As before the first world of a process."""
    for module in (dist, dist.distributed_c10d, dist.device_mesh):
        monkeypatch.setattr(module, "new_group", dist.new_group)  # to be restored
    kind = nn.parallel.DistributedDataParallel
    monkeypatch.setattr(kind, "__init__", kind.__init__)
    torch_in_place._prepare()
    yield
    atexit.unregister(torch_in_place._never_wait_at_exit)


def test_the_fence_knows_the_connections_of_every_group_that_the_script_makes(prepared: None) -> None:
    assert dist.new_group is dist.distributed_c10d.new_group is dist.device_mesh.new_group
    assert dist.new_group.hvd_elastic_fence


def test_heartbeats_tell_of_waits_within_torch(prepared: None) -> None:
    assert isinstance(standby.current().link.status.waits.__self__, TorchWaits)  # type: ignore[union-attr]


def test_a_group_that_is_kept_from_an_earlier_world_is_refused(prepared: None) -> None:
    torch_in_place._join()
    world, own = dist.group.WORLD, dist.new_group()
    torch_in_place.leave()
    torch_in_place._join()
    for kept in (world, own):
        for use in (
            lambda group: dist.all_reduce(torch.ones(1), group=group),
            lambda group: dist.broadcast_object_list([1], 0, group=group),
            lambda group: dist.barrier(group),
            dist.get_world_size,
        ):
            with pytest.raises(UsageError, match="belongs to an earlier world"):
                use(kept)
    dist.all_reduce(torch.ones(1), group=dist.new_group())
    torch_in_place.leave()


def test_the_ddp_of_a_lost_world_that_the_script_keeps_sends_nothing_in_the_next_one(prepared: None) -> None:
    """It expects the gradients of the backward pass that the loss has ended."""
    model = nn.Linear(4, 4)
    torch_in_place._join()
    kept = nn.parallel.DistributedDataParallel(model)
    lost = kept(torch.ones(1, 4)).sum()
    [former] = [group for group in dist.distributed_c10d._world.pg_map if group is dist.group.WORLD]
    torch_in_place.leave()
    before = torch_distributed._number(former)
    torch_in_place._join()
    nn.parallel.DistributedDataParallel(model)(torch.ones(1, 4)).sum().backward()
    with pytest.raises(UsageError, match="belongs to an earlier world: make it in the training function"):
        kept(torch.ones(1, 4))  # it would average nothing
    with torch.no_grad():
        kept(torch.ones(1, 4))
    torch_in_place.leave()
    assert torch_distributed._number(former) == before
    assert lost.requires_grad


class Pending:
    """An operation that does not end before ``ends``: Gloo has not told it that its peer is lost. It ends just after a
    wait that was in vain.
    """

    def __init__(self, ends: int | None = None, error: str | None = None) -> None:
        self.waits, self.ends, self.error = 0, ends, error

    def wait(self, timeout: Any = None) -> bool:
        completed = self.is_completed()
        self.waits += 1
        if not completed:
            raise RuntimeError("Operation timed out!")
        if self.error is not None:
            raise RuntimeError(self.error)
        return True

    def is_completed(self) -> bool:
        return self.ends is not None and self.waits >= self.ends


@pytest.fixture
def in_a_world(monkeypatch: pytest.MonkeyPatch) -> Fence:
    fence, times = Fence(), itertools.count()
    monkeypatch.setattr(torch_in_place, "HOROVOD_FENCE", fence)
    monkeypatch.setattr(torch_in_place.time, "monotonic", lambda: 0.3 * next(times))
    monkeypatch.setattr(torch_in_place, "_groups", [object()])
    return fence


def test_an_operation_is_waited_for_as_long_as_its_world_is_whole(in_a_world: Fence) -> None:
    InPlaceComms()._wait(Pending(ends=1000))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="Connection reset by peer"):
        InPlaceComms()._wait(Pending(ends=3, error="Connection reset by peer"))  # type: ignore[arg-type]


def test_an_operation_whose_connections_were_cut_is_left_behind_if_gloo_does_not_end_it(in_a_world: Fence) -> None:
    [group] = torch_in_place._groups
    in_a_world.cut()
    before = sys.getrefcount(group)
    with pytest.raises(WorldLost, match="its connections were cut"):
        InPlaceComms()._wait(Pending())  # type: ignore[arg-type]
    assert sys.getrefcount(group) == before + 1, "whoever destroys it would wait for the operation"
