"""``hvd_elastic_ext.run``: a function as a job on this machine."""

from __future__ import annotations

import pytest

import hvd_elastic_ext
from hvd_elastic_ext.core.errors import JobFailed


def train(number: int, *, fail: bool = False) -> list[int]:
    import hvd_elastic_ext.torch as elastic

    elastic.init()
    if fail and elastic.rank() == 1:
        raise RuntimeError("no luck")
    print(f"rank {elastic.rank()} is here")
    return [elastic.rank(), elastic.size(), number]


@pytest.mark.soak
def test_a_function_runs_in_each_process_and_its_results_come_back_by_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert hvd_elastic_ext.run(train, args=[7], np=2) == [[0, 2, 7], [1, 2, 7]]
    said = capsys.readouterr().out
    assert "rank 0 is here" in said
    assert "rank 1 is here" in said


@pytest.mark.soak
def test_a_function_that_fails_is_told_with_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(JobFailed, match=r"the job ended with exit code 1: .*RuntimeError: no luck"):
        hvd_elastic_ext.run(train, args=[7], kwargs={"fail": True}, np=2, options=["--failure-budget", "1"])
    assert "no luck" in capsys.readouterr().out


def returns(what: str) -> object:
    import datetime

    import numpy
    import torch

    if what == "a time":
        return [datetime.datetime(2026, 1, 1)]
    return numpy.ones(2), torch.ones(2), {1: (2,)}


@pytest.mark.soak
def test_a_function_as_horovod_has_it_returns_arrays_and_tensors_without_joining_a_world() -> None:
    first, second = hvd_elastic_ext.run(returns, ("all",), hosts="localhost:2")
    assert [type(each).__name__ for each in first] == ["ndarray", "Tensor", "dict"]
    assert first[2] == second[2] == {1: (2,)}


@pytest.mark.soak
def test_a_result_that_cannot_be_sent_back_is_told_in_the_exception() -> None:
    with pytest.raises(JobFailed, match=r"what rank 0 returned cannot be sent back: result\[0\]: it is a datetime"):
        hvd_elastic_ext.run(returns, ("a time",), np=1)
