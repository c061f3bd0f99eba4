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
    with pytest.raises(JobFailed, match=r"the job ended with exit code 1: \w"):
        hvd_elastic_ext.run(train, args=[7], kwargs={"fail": True}, np=2, options=["--failure-budget", "1"])
    assert "no luck" in capsys.readouterr().out
