"""What a process does with an order to cut its connections, before, while and after it enters a world."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from hvd_elastic_ext.worker.process.fence import Fence
from hvd_elastic_ext.worker.process.link import Link
from hvd_elastic_ext.worker.process.standby import ADDRESS, OrderedExit, Standby
from tests.unit.worker.process.test_fence import closed, horovods

FENCE = {"tell": "fence"}


class Joining:
    """A process and the next world, which ``tell`` is called in."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.agent, theirs = socket.socketpair()
        stack.enter_context(self.agent)
        self.process = Standby(Link(theirs), fence=Fence(), environ={ADDRESS: "127.0.0.1"})
        stack.callback(self.process.link.close)
        self.process.generation = 1
        self._stack = stack
        self._ends: tuple[int, int]

    def hear(self, *messages: dict[str, object]) -> None:
        for message in messages:
            self.process.link.on_message(message)

    def join(self, tell: Callable[[], object]) -> None:
        """Enter the next world. ``tell`` is called once it has a connection."""

        def connect() -> None:
            self._ends = horovods()
            for end in self._ends:
                self._stack.callback(os.close, end)
            tell()

        self.process.init(connect, lambda: None, later=False)

    @property
    def is_cut(self) -> bool:
        with socket.socket(fileno=os.dup(self._ends[1])) as end:
            return closed(end)


class Beginning:
    """A process in its first ``hvd.init()``: what it does, and what its agent hears, in this order."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.agent, theirs = socket.socketpair()
        stack.enter_context(self.agent)
        self.agent.settimeout(20)
        self.environ: dict[str, str] = {}
        self.process = Standby(Link(theirs), fence=Fence(), environ=self.environ)
        stack.callback(self.process.link.close)
        self.seen: list[str] = []

    def init(self, *answers: dict[str, object]) -> list[str]:
        """Begin. Once it is parked, it gets the ``answers``."""
        answer = threading.Thread(target=self._answer, args=answers)
        answer.start()
        self.process.init(self._join, lambda: self.seen.append("leaves"), later=True)
        answer.join()
        return self.seen

    def _answer(self, *answers: dict[str, object]) -> None:
        with self.agent.makefile("rb") as lines:
            said = (json.loads(line)["say"] for line in lines)
            self.seen.append(next(word for word in said if word != "beat"))
            for message in answers:
                self.agent.sendall(json.dumps(message).encode() + b"\n")

    def _join(self) -> None:
        alone, asks = ADDRESS not in self.environ, self.environ["HOROVOD_ELASTIC"] == "1"
        self.seen.append(f"joins {'its own' if alone else 'the others'}{', asks for a rank' * asks}")


@pytest.fixture
def beginning() -> Iterator[Beginning]:
    with contextlib.ExitStack() as stack:
        yield Beginning(stack)


def test_a_process_has_left_its_world_of_one_before_it_says_that_it_is_parked(beginning: Beginning) -> None:
    go = {"tell": "go", "env": {ADDRESS: "127.0.0.1"}}
    assert beginning.init(go, world(2)) == [
        "joins its own",
        "leaves",
        "parked",
        "joins the others, asks for a rank",
    ]


def test_one_that_goes_on_to_its_loop_has_a_world_of_one_again(beginning: Beginning) -> None:
    assert beginning.init({"tell": "alone"}) == ["joins its own", "leaves", "parked", "joins its own"]
    assert beginning.environ["HOROVOD_ELASTIC"] == "1"
    beginning.process.init(beginning._join, lambda: None, later=True)  # the script has shut Horovod down
    assert beginning.seen[-1] == "joins its own"


@pytest.fixture
def joining() -> Iterator[Joining]:
    with contextlib.ExitStack() as stack:
        yield Joining(stack)


def world(generation: int) -> dict[str, object]:
    return {"tell": "world", "generation": generation}


def test_an_order_for_the_world_before_leaves_the_world_that_forms_alone(joining: Joining) -> None:
    joining.join(lambda: joining.hear(FENCE, world(2)))
    assert not joining.is_cut


def test_so_it_does_if_it_is_heard_after_the_world_has_formed(joining: Joining) -> None:
    late = threading.Thread(target=joining.hear, args=(FENCE, world(2)))
    joining.join(late.start)
    late.join()
    assert not joining.is_cut


def test_an_order_that_follows_the_number_of_the_world_cuts_it_while_it_forms(joining: Joining) -> None:
    joining.join(lambda: joining.hear(world(2), FENCE))
    assert joining.is_cut


def test_an_order_in_the_world_cuts_it(joining: Joining) -> None:
    joining.join(lambda: joining.hear(world(2)))
    assert not joining.is_cut
    joining.hear(FENCE)
    assert joining.is_cut


def test_a_world_that_did_not_form_is_cut(joining: Joining) -> None:
    def fail() -> None:
        raise ValueError("Horovod could not be initialized")

    with pytest.raises(ValueError, match="could not"):
        joining.join(fail)
    joining.hear(FENCE)
    assert joining.is_cut


def test_who_asks_for_a_rank_or_connects_says_that_it_waits_for_others(joining: Joining) -> None:
    seen: list[bool] = []
    status = joining.process.link.status
    joining.join(lambda: (seen.append(status.waiting), joining.hear(world(2))))
    assert seen == [True]
    assert not status.waiting


def ends(joining: Joining, how: Callable[[], object]) -> dict[str, object]:
    """Leave a training function, and return what the process says last."""
    with pytest.raises(SystemExit), joining.process.training():
        how()
    said = joining.agent.recv(1 << 16).splitlines()
    assert json.loads(said[0]) == {"say": "looping", "call": 1}
    return dict(json.loads(said[-1]))


@pytest.mark.parametrize(
    ("end", "well"),
    [
        (SystemExit, True),
        (SystemExit(None), True),
        (SystemExit(0), True),
        (SystemExit(1), False),
        (SystemExit("no data"), False),
        (OrderedExit(0), False),
    ],
    ids=str,
)
def test_a_process_says_whether_its_script_ends_well_within_the_training_function(
    joining: Joining, end: SystemExit, well: bool
) -> None:
    joining.process.link.status.step, joining.process.link.status.commit = 12, (1, 1, 5)

    def leave() -> None:
        raise end

    assert ends(joining, leave) == {"say": "left", "call": 1, "well": well, "step": 12, "commit": [1, 1, 5]}


@pytest.mark.parametrize(
    "message", [{"tell": "update", "leave": True, "generation": 2}, {"tell": "reclaim", "leaving": True}]
)
def test_an_end_after_an_order_to_leave_does_not_end_training(joining: Joining, message: dict[str, object]) -> None:
    joining.hear(message)
    assert not joining.process.ends_training(SystemExit(0))


def test_a_parked_process_that_is_to_leave_does_so_though_results_have_come_with_the_order(joining: Joining) -> None:
    """Else it goes on alone, and leaves as one that was in the job."""
    joining.hear({"tell": "results"})
    joining.process.leaving = True
    with pytest.raises(OrderedExit):
        joining.process.park(is_over=lambda: True)


def test_an_end_after_a_sigterm_that_the_script_handles_is_reported_as_such(joining: Joining) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        joining.process.watch_signals()
        assert joining.process.ends_training(SystemExit(0))
        os.kill(os.getpid(), signal.SIGTERM)
        assert not joining.process.ends_training(SystemExit(0))
    finally:
        joining.process.link.close()
        signal.signal(signal.SIGTERM, before)
    assert json.loads(joining.agent.recv(1 << 16)) == {"say": "terminated"}
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_to_a_child_process_is_not_one_to_the_process(joining: Joining) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        joining.process.watch_signals()
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert joining.process.ends_training(SystemExit(0))
    finally:
        joining.process.link.close()
        signal.signal(signal.SIGTERM, before)


def test_a_script_with_a_descriptor_for_signals_of_its_own_keeps_it(joining: Joining) -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(writer)
    try:
        joining.process.watch_signals()
    finally:
        assert signal.set_wakeup_fd(-1) == writer
        os.close(reader)
        os.close(writer)


def test_a_process_in_a_barrier_of_its_host_goes_on_when_it_is_told_or_after_its_time(
    joining: Joining, caplog: pytest.LogCaptureFixture
) -> None:
    told = threading.Timer(0.05, joining.hear, [{"tell": "barrier", "call": 0, "number": 1}])
    told.start()
    joining.process.pass_barrier(0, 1)
    told.join()
    joining.process.pass_barrier(0, 1)  # it knows
    assert not caplog.records
    joining.process.pass_barrier(0, 2, line_s=0.01, most_s=0.05)
    assert [record.getMessage() for record in caplog.records] == [
        "hvd.barrier() waits for other new processes of this host",
        "hvd.barrier(): other new processes of this host have not come within 0.05 s",
    ]
    said = [json.loads(line) for line in joining.agent.recv(1 << 16).splitlines()]
    assert said[-1] == {"say": "barrier", "call": 0, "number": 2}
    joining.process.leaving = True
    with pytest.raises(OrderedExit):
        joining.process.pass_barrier(0, 3)
