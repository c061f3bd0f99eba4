"""Reports of failures, and step times."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.data.sampler import ElasticSampler
from hvd_elastic_ext.worker.parts.torch_parts import StatefulPart
from hvd_elastic_ext.worker.process import error_report
from hvd_elastic_ext.worker.process.error_report import (
    LONGEST,
    describe,
    digest,
    follows_lost_peer,
    for_the_user,
    is_failure,
    names_lost_collective,
    shortened,
)
from hvd_elastic_ext.worker.process.link import Status
from hvd_elastic_ext.worker.process.steps import StepTimer, preparing


def caught(raising: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - whatever it is
        raising()
    return raised.value


def divide(by: int) -> float:
    return 1 / by


def number(text: str) -> int:
    if text.startswith("a"):
        return int(text)
    return int(text)


def test_the_digest_depends_on_the_mistake_not_on_its_message() -> None:
    assert digest(caught(lambda: number("rank 1"))) != digest(caught(lambda: number("a rank")))  # other lines
    one, other = (digest(caught(lambda text=text: number(text))) for text in ("rank 1", "rank 2"))
    assert one == other
    assert one != digest(caught(lambda: divide(0)))


def test_an_interrupt_or_an_exit_is_not_a_failure() -> None:
    assert is_failure(ValueError())
    for other in (HorovodInternalError(), HostsUpdatedInterrupt(False), SystemExit(1), KeyboardInterrupt()):
        assert not is_failure(other)


def test_an_error_that_follows_from_a_lost_peer_is_known_as_that() -> None:
    def handled_badly() -> None:
        try:
            raise HorovodInternalError("reset")
        except HorovodInternalError as error:
            raise OSError("no state") from error

    gloo = RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:7")
    nccl = RuntimeError("NCCL error: remote process exited or there was a network error")
    for error in (HorovodInternalError(), caught(handled_badly), gloo, nccl):
        assert follows_lost_peer(error)
    for error in (ValueError("Connection closed by peer"), ConnectionResetError(), SystemExit(1), RuntimeError("bad")):
        assert not follows_lost_peer(error)


GRAPH = """Graph execution error:

Detected at node Distributed/cond_3/HorovodAllreduce_grads_0 defined at (most recent call last):
  File "/x/train.py", line 41, in train

Horovod has been shut down. This was caused by an exception on one of the ranks.
\t [[{{node Distributed/cond_3/HorovodAllreduce_grads_0}}]] [Op:__inference_step_1045]"""


PYTHON = """Graph execution error:

Detected at node PyFunc defined at (most recent call last):
  File "/x/train.py", line 41, in train

RuntimeError: no such label
Traceback (most recent call last):

  File "/x/train.py", line 12, in labels_of
    return HorovodTrainer.labels[number]

RuntimeError: no such label

\t [[{{node PyFunc}}]] [Op:__inference_step_1045]"""
"""A function of the script's own raises within a graph, which TensorFlow turns into the error of a lost peer."""


BESIDE = PYTHON.replace("[[{{node PyFunc}}]]", "[[{{node PyFunc}}]]\n\t [[Distributed/HorovodAllreduce_grads_0/_4]]")
"""The same where a graph is on several devices: an operation that got no input is listed, without double braces."""


def of_tensorflow(name: str, text: str) -> Exception:
    """An error as TensorFlow's: they are known by their class and its module."""
    kind = type(name, (Exception,), {"__module__": "tensorflow.python.framework.errors_impl"})
    return kind(text)  # type: ignore[no-any-return]


def test_errors_of_tensorflow_that_name_a_lost_collective_are_known_as_that_and_no_others_are() -> None:
    for name in ("UnknownError", "AbortedError", "CancelledError", "InternalError", "UnavailableError"):
        assert follows_lost_peer(of_tensorflow(name, GRAPH))
        assert not is_failure(of_tensorflow(name, GRAPH))
    ours = "[gloo/transport/tcp/pair.cc:598] Connection closed by peer\n\t [[{{node hvd_elastic_ext.agreement}}]]"
    assert follows_lost_peer(of_tensorflow("UnknownError", ours))
    for other in (
        of_tensorflow("UnknownError", "hvd_elastic_ext.core.errors.StateError: no such value\n\t [[{{node PyFunc}}]]"),
        of_tensorflow("FailedPreconditionError", f"Mismatched allreduce tensor shapes\n{GRAPH}"),  # the script's
        of_tensorflow("InvalidArgumentError", GRAPH),
        of_tensorflow("UnknownError", "Graph execution error:\nDetected at node MatMul"),
        type("UnknownError", (Exception,), {})(GRAPH),
        of_tensorflow("UnknownError", PYTHON),
        of_tensorflow("UnknownError", BESIDE),
        of_tensorflow("UnknownError", PYTHON.replace("node PyFunc", "node HorovodAllreduce_checks/PyFunc")),
        of_tensorflow("UnknownError", PYTHON.replace("no such label", "gloo: Connection closed by peer")),
    ):
        assert not follows_lost_peer(other)
        assert is_failure(other)


@pytest.mark.parametrize(
    "text",
    [
        "[gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:7\n\t [[{{node stops}}]]",
        "Horovod has been shut down. This was caused by an exception on one of the ranks.\n\t [[{{node stops}}]]",
        "{{function_node __wrapped__HorovodAllgather_device_/job:localhost/device:CPU:0}} it [Op:HorovodAllgather]",
        PYTHON.replace("RuntimeError:", "horovod.common.exceptions.HorovodInternalError:"),
        f"2 root error(s) found.\n  (0) UNKNOWN: {PYTHON}\n  (1) UNKNOWN: {GRAPH}",
    ],
)
def test_a_collective_is_lost_also_by_a_name_of_the_scripts_outside_of_graphs_and_in_python_within_one(
    text: str,
) -> None:
    assert names_lost_collective(of_tensorflow("UnknownError", text))


def test_an_error_that_only_lists_a_collective_is_a_loss_if_the_world_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = of_tensorflow("CancelledError", "RecvAsync is cancelled\n\t [[{{node Add}}]] [[HorovodAllreduce_0/_4]]")
    foreign = of_tensorflow("CancelledError", "RecvAsync is cancelled\n\t [[{{node Add}}]]")
    for cut in (False, True):
        monkeypatch.setattr(error_report, "HOROVOD_FENCE", SimpleNamespace(is_broken=lambda: cut))  # noqa: B023
        assert names_lost_collective(listed) == cut
        for own in (foreign, of_tensorflow("UnknownError", BESIDE)):
            assert not names_lost_collective(own)


def test_a_closed_connection_of_which_gloo_says_nothing_is_a_loss_if_the_world_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Data may come over one, and the next world would have the same error."""
    other = of_tensorflow("UnavailableError", "reading s3://data/1: Connection closed by peer\n\t [[{{node Read}}]]")
    for cut in (False, True):
        monkeypatch.setattr(error_report, "HOROVOD_FENCE", SimpleNamespace(is_broken=lambda: cut))  # noqa: B023
        assert names_lost_collective(other) == cut


def test_of_an_error_of_tensorflow_the_line_says_only_what_has_failed() -> None:
    found = describe(of_tensorflow("UnknownError", GRAPH))["error"]
    assert found == "UnknownError: Detected at node Distributed/cond_3/HorovodAllreduce_grads_0"
    assert describe(of_tensorflow("OutOfRangeError", "the end\nof it"))["error"] == "OutOfRangeError: the end"
    assert describe(of_tensorflow("UnknownError", PYTHON))["error"] == "UnknownError: RuntimeError: no such label"
    assert describe(ValueError("two\nlines"))["error"] == "ValueError: two lines"


OF_THE_SCRIPT = """Graph execution error:

Detected at node assert_less/Assert/Assert defined at (most recent call last):
  File "/x/train.py", line 41, in train

assertion failed: [no number like this] [Condition x < y did not hold element-wise:] [2] [1]
\t [[{{node assert_less/Assert/Assert}}]] [Op:__inference_f_20]"""


def test_of_an_error_of_the_script_in_a_graph_the_line_is_what_it_says() -> None:
    found = describe(of_tensorflow("InvalidArgumentError", OF_THE_SCRIPT))["error"]
    assert found.startswith("InvalidArgumentError: assertion failed: [no number like this]")
    mismatch = GRAPH.replace("Horovod has been shut down.", "Mismatched allreduce tensor shapes.")
    found = describe(of_tensorflow("FailedPreconditionError", mismatch))["error"]
    assert found.startswith("FailedPreconditionError: Mismatched allreduce tensor shapes.")


def test_a_failure_is_described_within_limits() -> None:
    found = describe(caught(lambda: number("ü" * 50_000)))
    assert found["error"].startswith("ValueError: ")
    assert len(found["error"]) <= 1000
    assert len(found["traceback"]) <= LONGEST
    assert found["traceback"].isascii()
    assert "in number" in found["traceback"]


class Unloadable:
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.x = state["x"]


def test_a_mistake_is_shown_with_the_users_own_line_and_none_of_ours() -> None:
    def script() -> None:
        ElasticSampler(range(3), seed="x")

    shown = for_the_user(caught(script))
    assert shown is not None
    assert "worker/data/sampler.py" not in shown
    first, *middle, last = shown.splitlines()
    assert first == "Traceback (most recent call last):"
    assert [line for line in middle if "File" in line][-1].endswith("in script")
    assert last.endswith("UsageError: ElasticSampler: seed is 'x'; give a whole number, the same on every rank")
    assert describe(caught(script))["traceback"].count("worker/data/sampler.py") == 0


@pytest.mark.parametrize("library", ["torch", "tensorflow", "keras", "tf_keras"])
def test_the_users_own_line_is_the_last_one_though_a_library_called_ours(library: str) -> None:
    fit = compile("def fit(call):\n    call()\n", f"/x/site-packages/{library}/src/training.py", "exec")
    found: dict[str, Callable[[object], None]] = {}
    exec(fit, found)

    def script() -> None:
        found["fit"](partial(ElasticSampler, range(3), seed="x"))

    shown = for_the_user(caught(script))
    assert shown is not None
    assert [line for line in shown.splitlines() if "File" in line][-1].endswith("in script")


def test_what_torch_raised_inside_of_ours_is_left_out_and_what_the_users_own_code_raised_is_not() -> None:
    scheduler = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD([torch.ones(1)], lr=1.0), lambda epoch: 1.0)
    shown = for_the_user(caught(lambda: StatefulPart(scheduler).restore({"gamma": 1.0})))
    assert shown is not None
    assert ("direct cause" in shown, "site-packages" in shown) == (False, False)
    shown = for_the_user(caught(lambda: StatefulPart(Unloadable()).restore({})))
    assert shown is not None
    assert 'self.x = state["x"]' in shown
    assert "torch_parts.py" not in shown


def test_an_error_that_is_not_ours_or_all_inside_of_ours_is_shown_whole() -> None:
    assert for_the_user(caught(lambda: divide(0))) is None
    error = StateError("x")
    assert for_the_user(error) == "hvd_elastic_ext.core.errors.StateError: x\n"
    inside = caught(lambda: StatefulPart(None).capture())
    assert "torch_parts.py" in describe(inside)["traceback"]


def test_a_long_traceback_keeps_its_beginning_and_its_end() -> None:
    text = shortened("first" + "x" * 100_000 + "last")
    assert len(text) == LONGEST
    assert text.startswith("first")
    assert text.endswith("last")


class Steps:
    """An optimizer, waits, and a clock that advances meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.status = Status()
        self.said: list[tuple[str, float | None]] = []
        self.pace = StepTimer(
            self.status, lambda: self.now, report=lambda what, pause_s: self.said.append((what, pause_s))
        )

    def step(self, optimizer: object, *, work: float, wait: float) -> None:
        self.now += work
        self.pace.before_step(optimizer)
        with self.pace.waiting():
            self.now += wait
        self.pace.after_step(optimizer)


def test_a_steps_time_is_without_the_wait_for_others() -> None:
    steps, optimizer = Steps(), object()
    steps.step(optimizer, work=1.0, wait=5.0)
    assert steps.status.step_s is None
    steps.step(optimizer, work=0.25, wait=3.0)
    assert (steps.status.step, steps.status.step_s, steps.status.progress) == (2, 0.25, 2)
    assert steps.status.stepped_at == 9.25


def test_waits_that_overlap_count_once() -> None:
    steps, optimizer = Steps(), object()
    steps.step(optimizer, work=1.0, wait=0.0)
    first, steps.now = steps.now, steps.now + 1.0
    second, steps.now = steps.now, steps.now + 2.0
    steps.pace.waited(first)
    steps.now += 1.0
    steps.pace.waited(second)  # two models are averaged in one backward pass
    with steps.pace.waiting():
        steps.now += 1.0
        with steps.pace.waiting():
            steps.now += 2.0
        assert steps.status.waiting
    steps.step(optimizer, work=0.25, wait=3.0)
    assert steps.status.step_s == 0.25


def test_horovods_optimizer_which_calls_the_step_within_its_own_makes_one_step_of_both() -> None:
    class Wrapped:
        _allreduce_delay: dict[int, int] = {}  # noqa: RUF012 - only its presence matters

    steps, optimizer = Steps(), Wrapped()
    for _ in range(3):
        steps.pace.before_step(optimizer)
        steps.step(optimizer, work=0.1, wait=0.0)
        steps.pace.after_step(optimizer)
    assert steps.status.step == 3


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_step_that_raised_does_not_stop_the_count(wrapped: bool) -> None:
    class Optimizer:
        if wrapped:
            _allreduce_delay = ()

    steps, optimizer = Steps(), Optimizer()
    steps.pace.before_step(optimizer)  # and it never ends
    if wrapped:
        steps.pace.before_step(optimizer)
    steps.step(optimizer, work=0.1, wait=0.0) if not wrapped else _nested(steps, optimizer)
    assert steps.status.step == 1


def _nested(steps: Steps, optimizer: object) -> None:
    steps.pace.before_step(optimizer)
    steps.step(optimizer, work=0.1, wait=0.0)
    steps.pace.after_step(optimizer)


def test_a_states_own_step_count_is_kept() -> None:
    steps = Steps()
    steps.status.own_step = True
    steps.step(object(), work=0.1, wait=0.0)
    assert (steps.status.step, steps.status.progress) == (0, 1)


def test_the_first_step_in_a_world_reports_the_pause_before_it() -> None:
    steps, optimizer = Steps(), object()
    steps.status.fresh = True
    steps.step(optimizer, work=9.0, wait=1.0)  # nothing was interrupted by the first world
    for _ in range(2):
        steps.step(optimizer, work=0.25, wait=0.25)
    steps.now += 3.0
    steps.status.fresh = True
    for _ in range(2):
        steps.step(optimizer, work=0.25, wait=0.25)
    assert steps.said == [("first_step", None), ("first_step", 3.0)]


def test_a_call_that_only_makes_an_optimizers_state_is_not_a_step() -> None:
    steps, optimizer = Steps(), object()
    steps.status.fresh = True
    with preparing():
        steps.step(optimizer, work=1.0, wait=0.0)
    assert (steps.status.step, steps.status.stepped_at, steps.status.fresh, steps.said) == (0, None, True, [])
    steps.step(optimizer, work=1.0, wait=0.0)
    assert (steps.status.step, steps.said) == (1, [("first_step", None)])


def test_waiting_for_other_ranks_is_reported() -> None:
    steps = Steps()
    seen = []
    with contextlib.suppress(RuntimeError), steps.pace.waiting():
        seen.append(steps.status.waiting)
        raise RuntimeError("a peer is gone")
    assert seen == [True]
    assert not steps.status.waiting
