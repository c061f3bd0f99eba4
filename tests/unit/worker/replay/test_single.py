"""A process that executes one recorded step in place of training, without processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import pytest
import torch

from hvd_elastic_ext.worker.replay.history import History
from hvd_elastic_ext.worker.replay.notes import Run, World
from hvd_elastic_ext.worker.replay.recorder import Recorder
from hvd_elastic_ext.worker.replay.single import Request, Single
from tests.unit.worker.replay.test_recorder import Job, former

PLAIN = torch.autograd.backward


class Ended(BaseException):
    """In place of the end of the process; no ``except Exception`` of a script holds it."""


def end(report: Mapping[str, Any]) -> NoReturn:
    raise Ended(report)


@pytest.fixture(autouse=True)
def _plain_backward_passes() -> Iterator[None]:
    yield
    torch.autograd.backward = PLAIN  # the process would have ended


def alone(step: int, *runs: Run) -> Job:
    """A job that goes on from a commit before ``runs``, to execute the step of that number only."""
    job = Job()
    single = Single(Request(step, 5, runs), end)
    job.recorder = Recorder(job, replayed=lambda *_: None, single=single)
    job.recorder.take_up(None, step=0, generation=1)
    job.enter()
    return job


def report_of(do: Callable[[], object]) -> Any:
    with pytest.raises(Ended) as ended:
        do()
    return ended.value.args[0]


def train(job: Job, steps: int) -> None:
    loop = job.loop()
    for _ in range(steps):
        job.step(loop)


def noted_by(job: Job) -> tuple[Run, ...]:
    """What a job of one rank has noted."""
    job.recorder.settle()
    return tuple(job.recorder._done)


def test_it_ends_before_the_update_of_that_step_with_the_loss_and_gradients_that_the_job_had() -> None:
    job, samples, losses, norms, weights = Job(), [], [], [], []
    job.recorder._seed = 5
    job.enter()
    for step in job.loop():
        for (places, inputs), weight in step:  # one
            loss = job.net(inputs).mean() * weight
            loss.backward()
            samples.append(places.tolist())
            losses.append(loss.item())
        norms.append([torch.linalg.vector_norm(each.grad).item() for each in job.net.parameters()])
        weights.append([each.detach().clone() for each in job.net.parameters()])
        job.optimizer.step()
        job.optimizer.zero_grad()
    for number in (1, 4, 6):
        again = alone(number, *noted_by(job))
        report = report_of(lambda again=again: train(again, 6))
        assert report["step"] == number
        assert report["loss"] == losses[number - 1]
        assert [row["norm"] for row in report["gradients"]] == norms[number - 1]
        assert [row["norm_at_update"] for row in report["gradients"]] == norms[number - 1]
        assert [row["parameter"] for row in report["gradients"]] == [
            f"net.{name}" for name, _ in again.net.named_parameters()
        ]
        assert report["ranks"] == [{"rank": 0, "loss": losses[number - 1], "samples": samples[number - 1]}]
        assert report["learning_rates"] == [0.1]
        assert again.count == number - 1
        assert all(map(torch.equal, again.net.parameters(), weights[number - 1]))


def test_the_parts_of_all_ranks_are_taken_and_the_loss_is_the_mean_of_theirs() -> None:
    job = alone(2, Run(former(2), (0.1,), 3))
    order = job.sampler.remaining_indices[4:8].tolist()
    report = report_of(lambda: train(job, 3))
    assert report["world"] == {"generation": 1, "size": 2}
    assert [(rank["rank"], rank["samples"]) for rank in report["ranks"]] == [(0, order[::2]), (1, order[1::2])]
    assert report["loss"] == pytest.approx(sum(rank["loss"] for rank in report["ranks"]) / 2)


def test_gradients_that_the_script_changes_before_the_update_are_shown_as_they_were_and_as_they_are() -> None:
    job = alone(1, Run(former(1), (0.1,)))

    def clipped() -> None:
        for (_, inputs), weight in next(job.loop()):
            (job.net(inputs).mean() * weight).backward()
        torch.nn.utils.clip_grad_norm_(job.net.parameters(), 1e-3)
        job.optimizer.step()

    rows = report_of(clipped)["gradients"]
    assert sum(row["norm_at_update"] ** 2 for row in rows) ** 0.5 == pytest.approx(1e-3, rel=1e-3)
    assert sum(row["norm"] ** 2 for row in rows) ** 0.5 > 0.1


def test_a_step_that_no_optimizer_did_is_not_the_one_that_is_meant() -> None:
    """As with a gradient scaler, which skips it."""
    job = alone(1, Run(former(1), (0.1,), 2))
    loop, order = job.loop(), job.sampler.remaining_indices.tolist()
    for (_, inputs), weight in next(loop):
        (job.net(inputs).mean() * weight).backward()
    job.optimizer.zero_grad()
    assert report_of(lambda: job.step(loop))["ranks"][0]["samples"] == order[4:8]


def test_a_loss_that_is_not_one_number_is_unknown_and_one_that_is_not_finite_is_shown() -> None:
    job = alone(1, Run(former(1), (0.1,)))

    def several() -> None:
        for (_, inputs), _ in next(job.loop()):
            job.net(inputs).backward(torch.ones(4, 1))
        job.optimizer.step()

    assert report_of(several)["loss"] is None
    job = alone(1, Run(former(1), (0.1,)))

    def infinite() -> None:
        for (_, inputs), _ in next(job.loop()):
            (job.net(inputs).mean() * float("inf")).backward()
        job.optimizer.step()

    report = report_of(infinite)
    assert abs(report["loss"]) == float("inf")


def test_it_ends_where_the_script_would_train_something_else() -> None:
    job = alone(2, Run(former(1, total=8), (0.1,)))  # its loop has global batches of 4
    assert "other steps" in report_of(lambda: job.train(1))["error"]
    assert job.count == 0
    job = alone(9, Run(former(1), (0.1,), 2))
    assert "other steps" in report_of(lambda: job.train(3))["error"]
    assert job.count == 2
    job = alone(9, Run(former(1), (0.1,), 2))
    job.train(1)
    assert "ended before" in report_of(job.recorder.ended)["error"]
    other = Job()
    other.recorder = Recorder(other, replayed=lambda *_: None, single=Single(Request(1, 5, ()), end))
    assert "another State" in report_of(other.enter)["error"]  # it has not gone on from the commit


def test_only_the_steps_after_the_commit_are_done_again() -> None:
    world, history = World(1, 1, source="sampler", total=4), History()
    for number in range(10):
        history = history.after([Run(world, (number / 10,))], generation=1)
    data = {"step": 9, "at": 7, "notes": history.encode(3, step=10)}
    request = Request.decode(json.dumps(data).encode())
    assert (request.step, request.seed) == (9, 3)
    assert [run.rates for run in request.left] == [(0.7,), (0.8,), (0.9,)]
