"""A job of Kueue waits, trains once it is admitted, sleeps when it is evicted, and goes on at the step where it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes.kept_steps import Steps
from tests.e2e.kubernetes.newcomer import LONGEST_S, Newcomer, kube, newcomer
from tests.support.kube.kueue import FLAVOUR, GATE, Kueue
from tests.support.kube.server import KubeServer
from tests.support.waiting import wait_until

__all__ = ["kube", "newcomer"]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture
def kueue(kube: KubeServer) -> Iterator[Kueue]:
    with Kueue(kube) as found:
        yield found
        assert found.errors == []


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


def line(kind: str, steps: Steps) -> str:
    return (
        f"hvd-elastic submit digits --image … --kind {kind} --queue kueue/user --workers 2 --min-workers 2 "
        f"--data ckpt:/ck -- hvd-elastic run --checkpoint-dir /ck --sleep-after 1 python {steps.command}"
    )


def test_an_mpijob_of_kueue_sleeps_with_a_checkpoint_while_it_is_not_admitted(
    newcomer: Newcomer, kueue: Kueue, steps: Steps
) -> None:
    newcomer.types(line("mpijob", steps))
    newcomer.waits("digits", "suspended")
    assert (kueue.waiting(), newcomer.pods()) == (["digits"], [])
    assert "suspended by Kueue" in newcomer.is_refused("hvd-elastic resume digits")

    kueue.admit("digits")
    steps.trains(2)
    newcomer.waits("digits", "running")
    assert newcomer.kube.get("pods", "digits-worker-0")["spec"]["nodeSelector"] == FLAVOUR

    kueue.evict("digits")
    newcomer.waits("digits", "suspended")
    newcomer.waits_for_no_pods()
    before = steps.lines()
    assert list(newcomer.claims.claim("ckpt").iterdir())

    kueue.admit("digits")
    steps.trains(2, worlds=2)
    steps.nothing_was_lost()
    assert len(steps.lines()) > len(before)
    steps.end()
    newcomer.waits("digits", "succeeded")
    steps.nothing_was_lost()


def test_workers_of_a_statefulset_wait_for_kueue_while_their_launcher_sleeps(
    newcomer: Newcomer, kueue: Kueue, steps: Steps
) -> None:
    newcomer.types(line("statefulset", steps))
    wait_until(lambda: kueue.waiting() == ["digits-worker"], what="the workers' gates", timeout=LONGEST_S)
    newcomer.waits("digits", "sleeping")
    asked = newcomer.types("hvd-elastic get digits")
    assert "Scheduling is blocked due to non-empty scheduling gates" in asked
    assert steps.lines() == []

    kueue.admit("digits-worker")
    steps.trains(2)
    assert "as one group" in newcomer.is_refused("hvd-elastic scale digits 3 -n default")

    kueue.evict("digits-worker")
    wait_until(
        lambda: "asleep" in newcomer.types("hvd-elastic logs digits"), what="a launcher that sleeps", timeout=LONGEST_S
    )
    wait_until(lambda: kueue.waiting() == ["digits-worker"], what="new workers' gates", timeout=LONGEST_S)
    assert list(newcomer.claims.claim("ckpt").iterdir())
    gated = newcomer.kube.get("pods", "digits-worker-0")["spec"]["schedulingGates"]
    assert gated == [{"name": GATE}]

    kueue.admit("digits-worker")
    steps.trains(2, worlds=2)
    steps.end()
    newcomer.waits("digits", "succeeded")
    steps.nothing_was_lost()
    newcomer.types("hvd-elastic scale digits 0 -n default")
    newcomer.waits_for_no_pods(of="worker")
    assert "digits-launcher-1" in newcomer.pods()
