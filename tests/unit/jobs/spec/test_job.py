"""A job is refused with what is wrong, before a cluster is asked."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.spec.job import LONGEST_NAME, name_problem
from tests.support.jobs import example


@pytest.mark.parametrize("name", ["a", "digits", "big-model-7", "a" * LONGEST_NAME])
def test_a_name_that_pods_and_services_can_have_is_accepted(name: str) -> None:
    assert name_problem(name) == ""


@pytest.mark.parametrize(
    "name", ["", "Digits", "7b", "-a", "a-", "a.b", "a_b", "a b", "ä", "a" * (LONGEST_NAME + 1), "a/b", "a\n"]
)
def test_any_other_name_is_refused(name: str) -> None:
    assert name_problem(name)


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"image": ""}, "--image is missing"),
        ({"command": ()}, "the command is missing"),
        ({"workers": 9}, "--workers 9, --max-workers 8"),
        ({"min_workers": 0}, "--min-workers 0"),
        ({"gpus": -1}, "--gpus is -1"),
        ({"cpu": "four"}, "--cpu 'four' is not a quantity"),
        ({"memory": "16 GB"}, "--memory '16 GB' is not a quantity"),
        ({"restart_policy": "Always"}, "'Always' is not one of Never, OnFailure"),
        ({"worker_restart_policy": "always"}, "'always' is not one of Never, OnFailure, Always, ExitCode"),
        ({"queue": "user"}, "write kueue/NAME or volcano/NAME"),
        ({"labels": {"hvd-elastic-job": "x"}}, "--label hvd-elastic-job: a job is found by it"),
        ({"working_dir": "code"}, "--working-dir 'code': it must begin with /"),
        ({"volumes": {"data": "claim"}}, "a path must begin with /"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_name_of_its_option(others: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        example("mpijob", **others)


def test_processes_of_a_worker_are_its_gpus_unless_told_otherwise() -> None:
    numbers = [example("mpijob", gpus=gpus, slots=slots).slots_per_worker for gpus, slots in ((0, 0), (8, 0), (8, 4))]
    assert numbers == [1, 8, 4]
