"""Steps of scenarios about the helpers of agents: checkpoints, loads, saved memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_elastic_ext.core.errors import Asleep
from hvd_elastic_ext.launcher.checkpoints import attempt
from tests.unit.launcher.simulated_processes import Process


class HelperSteps:
    """A part of :class:`~tests.unit.launcher.scenarios.Scenario`."""

    cluster: Any
    _wait: Callable[..., None]
    _process: Callable[[str], Process]
    over_: Callable[..., None]

    def refuses_(self, host: str, helper: str, *why: str) -> None:
        self.cluster.answers[host, helper] = {"failed": " ".join(why)}

    def breaks_(self, host: str, helper: str) -> None:
        """The helper's process on that host fails."""
        self.cluster.answers[host, helper] = 1

    def found_(self, *hosts: str) -> None:
        """These hosts load a checkpoint of step 40."""
        for host in hosts:
            self.cluster.answers[host, "load"] = {"path": "/store/y", "step": 40, "generation": 3}

    def damaged_(self, host: str) -> None:
        """All checkpoints on that host are damaged."""
        self.cluster.answers[host, "load"] = {"failed": "all are damaged", "for_good": True}

    def unwritable_(self, host: str) -> None:
        """The host cannot write checkpoints."""
        why = {"failed": "Read-only file system; give a folder", "for_good": True, "unwritable": True}
        self.cluster.answers[host, "load"] = why

    def trains_(self, *words: str) -> None:
        """Wait until a process trains."""
        self._wait(lambda _: self.cluster.training, *words)

    def first_world_(self, host: str) -> None:
        """Check that the first world included that host."""
        assert host in self.cluster.events("resized")[0]["added"]

    def loaded_(self, host: str, times: str) -> None:
        found = [each for each, _ in self.cluster.of("load")].count(host)
        assert found >= int(times), found

    def forgotten_(self, host: str) -> None:
        """Check that the memory of the host's slot 0 was given back, and of no other slot."""
        assert self.cluster.forgotten == [(host, 0)], self.cluster.forgotten

    def finished_(self, finished: str) -> None:
        """Check whether the newest checkpoint says that it is the end of training."""
        assert str(self.cluster.of("seal")[-1][1]["facts"].get("finished")) == finished

    def accepts_(self, host: str, helper: str) -> None:
        del self.cluster.answers[host, helper]

    def saves_(self, *why: str) -> None:
        """Rank 0 has a function that saves files; ``why`` it fails, if it does."""
        self.cluster.saves = " ".join(why)

    def request_(self) -> None:
        """Request a checkpoint beyond which no process trains."""
        self.cluster.ask(attempt.request)

    def attempts_(self, *words: str) -> None:
        """``1``: wait until an attempt is in progress; ``0``: until none is."""
        self._wait(lambda w: (self.cluster.driver.job.checkpoints.attempt is not None) == (w[0] == "1"), *words)

    def let_on_(self) -> None:
        """Check that processes were allowed to train on."""
        assert None in self.cluster.stays

    def lose_b_(self) -> None:
        self.cluster.lose_agent("b")
        self.cluster.lose_world("a")
        self.cluster.hosts(a=1)

    def asked_(self, *words: str) -> None:
        """Wait for so many requests for a kind of helper; one if no number is given."""
        self._wait(lambda w: len(self.cluster.of(w[0])) >= int(w[1] if w[1:] else 1), *words)

    def helpers_(self, kind: str, *hosts: str) -> None:
        """Check which hosts were asked for that kind of helper, in order."""
        found = [host for host, _ in self.cluster.of(kind)]
        assert found == list(hosts), found

    def dropped_(self, *hosts: str) -> None:
        assert self.cluster.dropped == list(hosts), self.cluster.dropped

    def stays_(self, *words: str) -> None:
        """Wait for a message that lets no process train beyond the named commit."""
        self._wait(lambda _: True in self.cluster.stays, *words)

    def held_back_(self) -> None:
        """Check that no process may train beyond the last named commit."""
        assert None not in self.cluster.stays
        assert self.cluster.stays[-1] is True

    def released_(self) -> None:
        """Check that all processes may train on."""
        assert self.cluster.stays[-1] is None, self.cluster.stays

    def note_step_(self, host: str) -> None:
        self.step = self._process(host).steps

    def sealed_there_(self) -> None:
        """Check that the newest checkpoint is of the step noted by ``note-step``."""
        assert self.cluster.events("sealed")[-1]["step"] == self.step

    def asleep_(self, path: str = "/store/x", within: str = "<120") -> None:
        self.over_(within)
        assert isinstance(self.cluster.driver.outcome, Asleep), self.cluster.driver.outcome
        assert str(self.cluster.driver.outcome.path) == path
