"""Kinds of jobs without MPI Operator, from ``submit`` to the end: the commands of ``docs/submit.md`` on each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.kubernetes.kept_steps import Steps
from tests.e2e.kubernetes.newcomer import Newcomer, kube, newcomer
from tests.support.waiting import wait_until

__all__ = ["kube", "newcomer"]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


def seen(newcomer: Newcomer) -> dict[str, int | str]:
    return json.loads(newcomer.types("hvd-elastic get digits -o json"))


def test_a_statefulset_trains_and_obeys_every_command(newcomer: Newcomer, steps: Steps) -> None:
    said = newcomer.types(
        "hvd-elastic submit digits --image … --kind statefulset --workers 2 --max-workers 4 --data ckpt:/ck "
        f"-- hvd-elastic run --checkpoint-dir /ck python {steps.command}"
    )
    assert "job.batch/digits created" in said
    steps.trains(2)
    newcomer.waits("digits", "running")
    assert (seen(newcomer)["kind"], seen(newcomer)["asked"], seen(newcomer)["ready"]) == ("Job", 2, 2)
    table = newcomer.types("hvd-elastic get digits")
    assert all(each in table for each in ("digits-launcher-1", "digits-worker-0", "digits-worker-1"))
    newcomer.waits_for_world("digits", 2)
    assert newcomer.types("hvd-elastic attach digits -- echo hello") == "hello\n"

    assert newcomer.types("hvd-elastic scale digits 3 -n default") == "digits scaled to 3\n"
    worlds = steps.trains(3)
    newcomer.types("hvd-elastic scale digits 2 -n default")
    worlds = steps.trains(2, worlds=worlds + 1)

    assert newcomer.types("hvd-elastic suspend digits") == "job.batch/digits suspended\n"
    newcomer.waits("digits", "suspended")
    newcomer.waits_for_no_pods()
    assert list(newcomer.claims.claim("ckpt").iterdir())
    assert newcomer.types("hvd-elastic resume digits") == "job.batch/digits resumed\n"
    steps.trains(2, worlds=worlds + 1)

    steps.end()
    newcomer.waits("digits", "succeeded")
    steps.nothing_was_lost()
    assert newcomer.types("hvd-elastic scale digits 0 -n default") == "digits scaled to 0\n"
    newcomer.waits_for_no_pods(of="worker")
    assert re.search(r"<stdout>:done \d+", newcomer.types("hvd-elastic logs -f digits"))
    assert newcomer.types("hvd-elastic delete digits") == "jobs/digits deleted\n"
    newcomer.waits("digits", "deleted")
    newcomer.waits_for_no_pods()
    assert [each["metadata"]["name"] for each in newcomer.kube.all("statefulsets")] == []


def test_a_pytorchjob_trains_and_obeys_every_command(newcomer: Newcomer, steps: Steps) -> None:
    said = newcomer.types(
        "hvd-elastic submit digits --image … --kind pytorchjob --workers 2 --min-workers 2 --max-workers 4 "
        f"-- torchrun {steps.command}"
    )
    assert "pytorchjob.kubeflow.org/digits created" in said
    worlds = steps.trains(2)
    newcomer.waits("digits", "running")
    assert (seen(newcomer)["kind"], seen(newcomer)["asked"], seen(newcomer)["ready"]) == ("PyTorchJob", 2, 2)
    table = newcomer.types("hvd-elastic get digits")
    assert all(each in table for each in ("digits-worker-0", "digits-worker-1"))
    assert newcomer.types("hvd-elastic attach digits -i digits-worker-1 -- echo hello") == "hello\n"

    newcomer.types("hvd-elastic scale digits 3 -n default")
    worlds = steps.trains(3, worlds=worlds + 1)
    newcomer.types("hvd-elastic scale digits 2 -n default")
    steps.trains(2, worlds=worlds + 1)
    steps.nothing_was_lost()

    assert newcomer.types("hvd-elastic suspend digits") == "pytorchjob.kubeflow.org/digits suspended\n"
    newcomer.waits("digits", "suspended")
    newcomer.waits_for_no_pods()
    (steps.folder / "kept").unlink()
    newcomer.types("hvd-elastic resume digits")
    steps.trains(2)

    steps.end()
    newcomer.waits("digits", "succeeded")
    wait_until(lambda: "done" in "".join(newcomer.kube.logs.of("digits-worker-0")), what="the script's last line")
    assert re.search(r"^\[digits-worker-\d\] done \d+", newcomer.types("hvd-elastic logs -f digits"), re.MULTILINE)
    assert newcomer.types("hvd-elastic delete digits") == "pytorchjobs/digits deleted\n"
    newcomer.waits("digits", "deleted")
    newcomer.waits_for_no_pods()
