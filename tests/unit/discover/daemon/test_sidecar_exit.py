"""When the daemon ends with the container beside it, and when it does not."""

import logging

import pytest

from discover.daemon.own_pod import ContainerWatch, ending
from discover.pods.views import Container, Key, PodView
from tests.support.clock import ManualClock


def own(finished: int | None = None, *, names: tuple[str, ...] = ("launcher", "discover")) -> PodView:
    containers = tuple(Container(name, finished=finished if name == "launcher" else None) for name in names)
    return PodView(Key("ns", "job-launcher-x"), "uid", "1", phase="Running", containers=containers)


def test_it_goes_on_while_the_other_one_runs():
    assert ending(own(), "launcher") is None


@pytest.mark.parametrize("code", [0, 1, 137])
def test_rule_28_it_ends_well_however_the_other_one_ended(code):
    assert ending(own(code), "launcher") == (f"container launcher has ended with exit code {code}", 0)


def test_a_container_that_is_not_there_is_a_mistake():
    why, code = ending(own(names=("main", "discover")), "launcher")
    assert code == 2
    assert why == (
        "--exit-with-container launcher: there is no such container in pod ns/job-launcher-x; it has main, discover"
    )


class NoCollection:
    """Nothing is asked of it here."""

    where = "pod ns/job-launcher-x at https://here"

    def interrupt(self) -> None:
        """No request runs."""

    def close(self) -> None:
        """Nothing is open."""


class Told:
    def __init__(self) -> None:
        self.ends: list[tuple[str, int]] = []
        self.companion = ContainerWatch(
            NoCollection(),
            "launcher",
            end=lambda why, code: self.ends.append((why, code)),
            clock=ManualClock(),
            draw=lambda: 0.0,
            metrics=None,
        )

    def knows(self, *pods: PodView) -> None:
        self.companion._reflector._known = {pod.key: pod for pod in pods}
        self.companion._reflector._outdated = True
        self.companion._look(True)


def test_it_is_told_once_whatever_tells_it():
    told = Told()
    told.knows(own())
    assert told.ends == []
    told.knows(own(137))
    told.knows(own(137))
    assert told.ends == [("container launcher has ended with exit code 137", 0)]


def test_an_end_before_it_looked_is_an_end():
    told = Told()
    told.knows(own(0))
    assert len(told.ends) == 1


def test_a_pod_that_is_not_found_is_named_with_the_remedy_and_ends_nothing(caplog):
    caplog.set_level(logging.WARNING)
    told = Told()
    told.knows()
    assert told.ends == []
    assert "pod ns/job-launcher-x at https://here: not found" in caplog.text
    assert "--own-pod" in caplog.text
