"""Helpers of agents, for commits and checkpoints: which requests they get, and how and when they answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.unit.launcher.simulated_processes import Process, Processes


class Helpers(Processes):
    """One commit a step, one step a second. ``asked``: every request for a checkpoint, with its host. ``transferred``:
    every commit that was sent: source host, target host and step. ``dropped``: hosts that were told to drop a transfer.

    ``takes_s``: duration of each kind of helper; ``held_s``: additional time by host. ``answers``: by host and kind,
    the answer in place of a success; an exit code: the helper's process fails. ``exits_s``: seconds from the answer to
    the end of the helper's process. ``busy_s``: delay until ranks keep a named commit. ``saves``: rank 0 has a function
    that saves files; why it fails, empty if it does not. ``late``: this many messages with a named commit arrive too
    late. ``forgotten``: slots whose memory was given back. Storage has no checkpoint at first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sending: dict[str, tuple[str, int]] = {}
        self.transferred: list[tuple[str, str, int]] = []
        self.pasts_sent: list[tuple[str, str, int]] = []
        self.past_requests: list[dict[str, Any]] = []
        """Source host, target host and number of results."""
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
        """For each message about a commit to keep: whether no process may train beyond it; None: all may train on."""

    def of(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        """Return every request of a kind, with its host."""
        return [(host, request) for host, request in self.asked if request["do"] == kind]

    def _told(self, process: Process, message: Mapping[str, Any]) -> None:
        if message["tell"] == "keep":
            self.stays.append(message.get("stay"))
            if message["commit"] is not None:
                self._keep(process, list(message["commit"]))
        else:
            super()._told(process, message)

    def _keep(self, process: Process, wanted: list[int]) -> None:
        newest = [1, process.generation, process.steps]
        if self.late or newest > wanted:
            self.late = max(0, self.late - 1)
            self.say(process, "commit_not_kept", wanted=wanted, newest=max(newest, [*wanted[:2], wanted[2] + 1]))
        elif newest == wanted:
            if self.saves is not None and process.rank == 0:
                self._save(process, newest)
                return
            step = process.steps
            self.later(self.busy_s, lambda: self.say(process, "commit_kept", commit=[77, *newest], step=step, side=1))
        elif process.state == "training":
            self.later(0.1, self._keep, process, wanted)

    def _save(self, process: Process, newest: list[int]) -> None:
        if self.saves:
            self.say(process, "commit_not_kept", wanted=newest, newest=newest, failed=self.saves)
        else:
            self.say(process, "commit_kept", commit=[77, *newest], step=process.steps, side=2, files=True, stall_s=9.0)

    def _usual(self, host: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of a host if all goes well. The newest checkpoint is the one that was sealed last."""
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

    def _sent(self, host: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of a host about a commit that is sent to another slot."""
        if request["do"] == "send":
            self.sending[request["transfer"]] = (host, request["slot"])
            return {"listening": [request["address"], 4711]}
        copied = request["do"] == "copy"
        source = (host, request["from"]) if copied else self.sending[request["transfer"]]
        target = (host, request["to"] if copied else request["slot"])
        self.memory[target] = list(self.memory[source])
        self.transferred.append((source[0], host, self.memory[source][3]))
        return {"held": self.memory[target], "bytes": 8, "seconds": 0.1}

    def _past_sent(self, host: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of a host about results of calls that are sent to another slot."""
        if request["do"] == "send_past":
            self.sending[request["transfer"]] = (host, request["slot"])
            return {"listening": [request["address"], 4711]}
        copied = request["do"] == "copy_past"
        source = (host, request["from"]) if copied else self.sending[request["transfer"]]
        target = (host, request["to"] if copied else request["slot"])
        self.pasts[target] = max(self.pasts[source], self.pasts.get(target, 0))
        self.pasts_sent.append((source[0], host, self.pasts[source]))
        return {"results": self.pasts[target], "bytes": 8, "seconds": 0.1}

    def _answer(self, host: str, order: Mapping[str, Any], answer: dict[str, Any]) -> None:
        self.later(0.1, self._arrive, host, {"event": "helper", "id": order["id"], "answer": answer})

    def _helper(self, host: str, order: Mapping[str, Any]) -> None:
        if order["do"] == "drop":
            self.dropped.append(host)
            return
        request = dict(order["request"])
        if request["do"].endswith("_past"):
            self.past_requests.append(request)
            self._answer(host, order, self._past_sent(host, request))
            return
        if request["do"] in ("send", "receive", "copy"):
            self._answer(host, order, self._sent(host, request))
            return
        self.asked.append((host, request))
        usual = self._usual(host, request)
        answer = self.answers.get((host, request["do"]), usual)
        if host in self.silent:
            return
        if isinstance(answer, int):
            news = {"event": "helper_ended", "id": order["id"], "code": answer, "words": "Traceback\nOSError: no room"}
        else:
            news = {"event": "helper", "id": order["id"], "answer": answer}
        takes_s = self.takes_s[request["do"]] + self.held_s.get(host, 0.0)
        self.later(takes_s, self._arrive, host, news)
        if news["event"] == "helper":
            end = {"event": "helper_ended", "id": order["id"], "code": 0, "words": ""}
            self.later(takes_s + self.exits_s, self._arrive, host, end)
