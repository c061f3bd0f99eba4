"""A simulated cluster whose agents see to checkpoints: what they are asked, and when and how they answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from hvd_elastic_ext.core.errors import Asleep
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import Cadence, Durability, parse_checkpoint_every
from hvd_elastic_ext.launcher.state.effects.checkpoints import attempts
from tests.unit.launcher.scenarios import Scenario
from tests.unit.launcher.simulated_cluster import Cluster, JobOptions
from tests.unit.launcher.simulated_processes import Process


class Storing(Cluster):
    """One commit a step, one step a second. ``asked`` has every request by host; ``dropped`` counts hosts let go.

    ``takes_s``: how long each kind of helper takes; ``held_s``: how much longer on a host. ``answers``: what a host
    says to a kind of helper instead of that it went well; ``exits_s`` after that the helper's process has ended.
    ``busy_s``: so long ranks do something else before they keep what was named. ``saves``: rank 0 has a function that
    saves files; why it fails, if it does. ``late``: so many of the first words of a commit to keep arrive when it has
    passed. ``forgotten``: whose memory was given up. Storage has no checkpoint at first.
    """

    call_s = 1.0

    def __init__(self, every: Cadence, *, expects: str | None = None, **options: Any) -> None:
        super().__init__(JobOptions(durability=Durability("/store", every, mark="this"), **options), expects=expects)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.dropped: list[str] = []
        self.takes_s = {"write": 0.5, "seal": 0.1, "load": 0.5, "held": 0.2, "verify": 0.3}
        self.answers: dict[tuple[str, str], dict[str, Any] | int] = {(host, "load"): {} for host in "abc"}
        self.held_s: dict[str, float] = {}
        self.forgotten: list[tuple[str, int]] = []
        self.exits_s = 0.0005
        self.late = 0
        self.saves: str | None = None
        self.busy_s = 0.0
        self.stored: dict[str, Any] | None = None
        self._written: list[int] = []
        self.silent: set[str] = set()
        self.stays: list[bool | None] = []
        """Of each word about a commit to keep, whether nobody goes on beyond it; None where all may go on."""

    def of(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        """Every request of a kind, and whose it was."""
        return [(host, request) for host, request in self.asked if request["do"] == kind]

    def _told(self, process: Process, message: Mapping[str, Any]) -> None:
        if message["tell"] == "keep":
            self.stays.append(message.get("stay"))
            if message["commit"] is not None:
                self._keep(process, list(message["commit"]))
        else:
            super()._told(process, message)

    def _obey(self, host: str, order: dict[str, Any], connection: int) -> None:
        if order["do"] == "forget":
            self.forgotten.append((host, order["slot"]))
        super()._obey(host, order, connection)

    def _keep(self, process: Process, wanted: list[int]) -> None:
        newest = [1, process.generation, process.steps]
        if self.late or newest > wanted:
            self.late = max(0, self.late - 1)
            self.say(process, "not_kept", wanted=wanted, newest=max(newest, [*wanted[:2], wanted[2] + 1]))
        elif newest == wanted:
            if self.saves is not None and process.rank == 0:
                self._save(process, newest)
                return
            step = process.steps
            self.later(self.busy_s, lambda: self.say(process, "kept", commit=[77, *newest], step=step, side=1))
        elif process.state == "training":
            self.later(0.1, self._keep, process, wanted)

    def _save(self, process: Process, newest: list[int]) -> None:
        if self.saves:
            self.say(process, "not_kept", wanted=newest, newest=newest, failed=self.saves)
        else:
            self.say(process, "kept", commit=[77, *newest], step=process.steps, side=2, files=True, stall_s=9.0)

    def _usual(self, host: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """What a host says if all goes well. What was sealed last is the newest one there is."""
        match request["do"]:
            case "held":
                slots = self.agents[host].values()
                held = {str(each.slot): [[77, 1, each.generation, each.steps], each.steps, 1] for each in slots}
                ended = {slot: name for (name_of, slot), name in self.memory.items() if name_of == host}
                held = {str(slot): [[77, *name[:3]], name[3], 1] for slot, name in ended.items()} | held
                skipped = self.stored is not None and self.stored["name"] in request["skip"]
                return {"held": held, "newest": None if skipped else self.stored}
            case "verify":
                return {"whole": True, "why": ""}
            case "write":
                self._written = list(request["commit"])
            case "seal":
                name = "-".join(map(str, self._written[1:]))
                self.stored = {"name": name, "path": "/store/x", "identity": self._written, "step": self._written[3]}
        return {"path": "/store/x", "step": 40, "bytes": 9}

    def _helper(self, host: str, order: Mapping[str, Any]) -> None:
        if order["do"] == "drop":
            self.dropped.append(host)
            return
        request = dict(order["request"])
        if request["do"] in ("send", "receive", "copy"):
            super()._helper(host, order)
            return
        self.asked.append((host, request))
        usual = self._usual(host, request)
        answer = self.answers.get((host, request["do"]), usual)
        if host in self.silent:
            return
        if isinstance(answer, int):
            news = {"event": "errand_ended", "id": order["id"], "code": answer, "words": "Traceback\nOSError: no room"}
        else:
            news = {"event": "errand", "id": order["id"], "answer": answer}
        takes_s = self.takes_s[request["do"]] + self.held_s.get(host, 0.0)
        self.later(takes_s, self._arrive, host, news)
        if news["event"] == "errand":
            end = {"event": "errand_ended", "id": order["id"], "code": 0, "words": ""}
            self.later(takes_s + self.exits_s, self._arrive, host, end)


def storing(every: Cadence, *, expects: str | None = None) -> Callable[[JobOptions], Cluster]:
    """For :func:`tests.unit.launcher.scenarios.play`."""

    def made(options: JobOptions) -> Storing:
        others = {field.name: getattr(options, field.name) for field in fields(options) if field.name != "durability"}
        return Storing(every, expects=expects, **others)

    return made


class Stored(Scenario):
    """More steps, for clusters with checkpoints."""

    cluster: Storing

    def begin_(self, *words: str) -> None:
        """``every=5``: how often checkpoints are made, as on the command line."""
        every = [word.partition("=")[2] for word in words if word.startswith("every=")]
        self.kind = storing(parse_checkpoint_every(every[0])) if every else self.kind
        super().begin_(*(word for word in words if not word.startswith("every=")))

    def takes_(self, helper: str, seconds: str) -> None:
        self.cluster.takes_s[helper] = float(seconds)

    def held_(self, host: str, seconds: str) -> None:
        """Its helpers take so much longer."""
        self.cluster.held_s[host] = float(seconds)

    def refuses_(self, host: str, helper: str, *why: str) -> None:
        self.cluster.answers[host, helper] = {"failed": " ".join(why)}

    def breaks_(self, host: str, helper: str) -> None:
        """The helper's process fails."""
        self.cluster.answers[host, helper] = 1

    def found_(self, *hosts: str) -> None:
        """What they load is a checkpoint of step 40."""
        for host in hosts:
            self.cluster.answers[host, "load"] = {"path": "/store/y", "step": 40, "generation": 3}

    def damaged_(self, host: str) -> None:
        """All of its checkpoints are."""
        self.cluster.answers[host, "load"] = {"failed": "all are damaged", "for_good": True}

    def unwritable_(self, host: str) -> None:
        """No checkpoint could be written there."""
        why = {"failed": "Read-only file system; give a folder", "for_good": True, "unwritable": True}
        self.cluster.answers[host, "load"] = why

    def trains_(self, *words: str) -> None:
        """Somebody does."""
        self._wait(lambda _: self.cluster.training, *words)

    def first_world_(self, host: str) -> None:
        """It was formed with that host."""
        assert host in self.cluster.events("resized")[0]["added"]

    def loaded_(self, host: str, times: str) -> None:
        found = [each for each, _ in self.cluster.of("load")].count(host)
        assert found >= int(times), found

    def forgotten_(self, host: str) -> None:
        """The memory of its slot 0 was given up, and no other's."""
        assert self.cluster.forgotten == [(host, 0)], self.cluster.forgotten

    def finished_(self, finished: bool = True) -> None:
        """The newest checkpoint says that it is the end of training."""
        assert (self.cluster.of("seal")[-1][1]["facts"].get("finished") == "this") is finished

    def unfinished_(self) -> None:
        self.finished_(finished=False)

    def accepts_(self, host: str, helper: str) -> None:
        del self.cluster.answers[host, helper]

    def saves_(self, *why: str) -> None:
        """Rank 0 has a function that saves files; why it fails, if it does."""
        self.cluster.saves = " ".join(why)

    def late_(self, count: str) -> None:
        self.cluster.late = int(count)

    def request_(self) -> None:
        """A checkpoint is asked for, beyond which no process trains."""
        self.cluster.ask(attempts.request)

    def attempts_(self, *words: str) -> None:
        """``1``: one is under way; ``0``: none is."""
        self._wait(lambda w: (self.cluster.driver.job.checkpoints.attempt is not None) == (w[0] == "1"), *words)

    def let_on_(self) -> None:
        """Processes were let train on."""
        assert None in self.cluster.stays

    def silent_(self, *hosts: str) -> None:
        self.cluster.silent = set(hosts)

    def busy_(self, seconds: str) -> None:
        self.cluster.busy_s = float(seconds)

    def lose_b_(self) -> None:
        self.cluster.lose_agent("b")
        self.cluster.lose_world("a")
        self.cluster.hosts(a=1)

    def asked_(self, *words: str) -> None:
        """Wait for so many helpers of a kind, or one."""
        self._wait(lambda w: len(self.cluster.of(w[0])) >= int(w[1] if w[1:] else 1), *words)

    def helpers_(self, kind: str, *hosts: str) -> None:
        """Which hosts have been asked for that."""
        found = [host for host, _ in self.cluster.of(kind)]
        assert found == list(hosts), found

    def dropped_(self, *hosts: str) -> None:
        assert self.cluster.dropped == list(hosts), self.cluster.dropped

    def stays_(self, *words: str) -> None:
        """Wait until nobody may go beyond the commit that is named."""
        self._wait(lambda _: True in self.cluster.stays, *words)

    def held_back_(self) -> None:
        """Nobody is let beyond the last commit that was named."""
        assert None not in self.cluster.stays
        assert self.cluster.stays[-1] is True

    def released_(self) -> None:
        """All may go on."""
        assert self.cluster.stays[-1] is None, self.cluster.stays

    def note_step_(self, host: str) -> None:
        self.step = self._process(host).steps

    def sealed_there_(self) -> None:
        """The newest checkpoint is of that step."""
        assert self.cluster.events("sealed")[-1]["step"] == self.step

    def asleep_(self, path: str = "/store/x", within: str = "<120") -> None:
        self.over_(within)
        assert isinstance(self.cluster.driver.outcome, Asleep), self.cluster.driver.outcome
        assert str(self.cluster.driver.outcome.path) == path
