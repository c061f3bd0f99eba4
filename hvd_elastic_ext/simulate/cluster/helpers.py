"""Helpers of agents: transfers of commits between memories, and checkpoints, as ordered by launchers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.simulate.cluster.processes import WITHIN, Commit, World

if TYPE_CHECKING:
    from hvd_elastic_ext.simulate.cluster.agent import Agent
    from hvd_elastic_ext.simulate.cluster.cluster import Cluster

WAIT_S: Final = 60.0
"""Seconds that a sender waits for its receiver."""


class Helpers:
    """See the module's docstring. ``transfer_s``: seconds of a transfer."""

    def __init__(self, cluster: Cluster) -> None:
        self.transfer_s = cluster.times.transfer_s
        self.kept: dict[tuple[int, ...], Commit] = {}
        """Commits that processes keep for checkpoints, by lineage, incarnation, generation and number."""
        self.shared = True
        """Whether hosts share their storage; else each has its own."""
        self._stored: dict[str, Commit] = {}
        """The commit of the newest checkpoint on each storage."""
        self._pasts: dict[str, list[Commit | None]] = {}
        """The results of finished training calls in it."""
        self._facts: dict[str, Mapping[str, Any]] = {}
        """The facts in its manifest."""
        self._cluster, self._sim, self._times = cluster, cluster.sim, cluster.times
        self._offers: dict[int, tuple[Agent, int, Mapping[str, Any]]] = {}
        """Offers of senders by port."""
        self._ports = itertools.count(40000)

    def begin(self, agent: Agent, order: Mapping[str, Any]) -> None:
        """Start a helper of an agent. An agent has only one at a time, so a new one ends the one before."""
        for number in list(agent.helpers):
            self._killed(agent, number)
            agent.helper_ended(number, "another helper was ordered")
        agent.helpers[order["id"]] = tuple(order["slots"])
        self._sim.later(
            self.starts_s(agent, order["request"]),
            self.program(agent, order["request"]),
            agent,
            order["id"],
            order["request"],
        )

    def starts_s(self, agent: Agent, request: Mapping[str, Any]) -> float:
        """Return the seconds until a helper has started."""
        return self._times.helper_s

    def program(self, agent: Agent, request: Mapping[str, Any]) -> Callable[[Agent, int, Mapping[str, Any]], None]:
        """Return what a helper does."""
        return {
            "send": self._send,
            "receive": self._receive,
            "copy": self._copy,
            "send_past": self._send_past,
            "receive_past": self._receive_past,
            "copy_past": self._copy_past,
            "write": self._write,
            "seal": self._seal,
            "load": self._load,
            "held": self._held,
            "verify": self._verify,
        }[request["do"]]

    def drop(self, agent: Agent, slots: list[int]) -> None:
        """Drop the helpers of these slots."""
        for number, of in list(agent.helpers.items()):
            if not set(slots).isdisjoint(of):
                self._killed(agent, number)

    def _killed(self, agent: Agent, number: int) -> None:
        agent.tell_held(agent.helpers.pop(number))

    def _over(self, agent: Agent, number: int, answer: dict[str, Any], **more: Any) -> None:
        """Send the last answer of a helper, and end it."""
        slots = agent.helpers.pop(number)
        agent.answer(number, answer, **more)
        agent.tell_held(slots)
        agent.helper_ended(number)

    def _fails(self, agent: Agent, number: int, why: str, *, for_good: bool = False) -> None:
        if agent.alive and number in agent.helpers:
            self._over(agent, number, {"failed": why, "for_good": for_good})

    def _found(self, agent: Agent, slot: int, request: Mapping[str, Any]) -> Commit | None:
        """Return the requested commit if it is in memory."""
        agent.settle()
        sides = (agent.memory.get(slot), agent.before.get(slot))
        return next((side for side in sides if side is not None and side.name == list(request["commit"])), None)

    def _send(self, agent: Agent, number: int, request: Mapping[str, Any]) -> None:
        if number not in agent.helpers or not agent.alive:
            return
        if self._found(agent, request["slot"], request) is None:
            self._fails(agent, number, "the memory does not hold that commit", for_good=True)
            return
        self._offer(agent, number, request)

    def _offer(self, agent: Agent, number: int, request: Mapping[str, Any]) -> None:
        port = next(self._ports)
        self._offers[port] = (agent, number, request)
        agent.answer(number, {"listening": [request["address"], port]})
        self._sim.later(WAIT_S, self._gives_up, port)

    def _gives_up(self, port: int) -> None:
        if port in self._offers:
            agent, number, _ = self._offers.pop(port)
            self._fails(agent, number, "no receiver came")

    def _receive(self, agent: Agent, number: int, request: Mapping[str, Any]) -> None:
        sender, offered, offer = self._offers.pop(request["from"][1], (None, 0, {}))
        reached = sender is not None and self._linked(sender, agent) and offered in sender.helpers
        if number not in agent.helpers or not agent.alive:
            return
        if sender is None or not reached or offer["transfer"] != request["transfer"]:
            self._fails(agent, number, "the sender cannot be reached")
            return
        arrives = self._arrives if request["do"] == "receive" else self._past_arrives
        self._sim.later(
            self._cluster.drawn(self.transfer_s), arrives, agent, number, request, sender, offered, offer["slot"]
        )

    def _copy(self, agent: Agent, number: int, request: Mapping[str, Any]) -> None:
        if number not in agent.helpers or not agent.alive:
            return
        if self._found(agent, request["from"], request) is None:
            self._fails(agent, number, "the memory does not hold that commit", for_good=True)
            return
        whole = {**request, "slot": request["to"]}
        self._sim.later(
            self._cluster.drawn(self.transfer_s), self._arrives, agent, number, whole, agent, number, request["from"]
        )

    # --- results of finished training calls

    def _send_past(self, agent: Agent, number: int, request: Mapping[str, Any]) -> None:
        if number not in agent.helpers or not agent.alive:
            return
        if len(agent.pasts.get(request["slot"], ())) < request["results"]:
            self._fails(agent, number, "the memory does not hold so many results", for_good=True)
        else:
            self._offer(agent, number, request)

    def _receive_past(self, agent: Agent, number: int, request: Mapping[str, Any]) -> None:
        has = self._has_results(agent, request["slot"], request) and not request.get("record")
        if number in agent.helpers and agent.alive and has:
            self._over(agent, number, self._got_past(agent, request["slot"]))
        else:
            self._receive(agent, number, request)

    def _copy_past(self, agent: Agent, number: int, request: Mapping[str, Any]) -> None:
        if number not in agent.helpers or not agent.alive:
            return
        whole = {**request, "slot": request["to"]}
        self._sim.later(
            self._cluster.drawn(self.transfer_s),
            self._past_arrives,
            agent,
            number,
            whole,
            agent,
            number,
            request["from"],
        )

    def _past_arrives(
        self, agent: Agent, number: int, request: Mapping[str, Any], sender: Agent, offered: int, of: int
    ) -> None:
        whole = self._linked(sender, agent) and offered in sender.helpers and number in agent.helpers
        if not whole or not self._has_results(sender, of, request):
            self._fails(agent, number, "the connection was lost")
            if offered != number:
                self._fails(sender, offered, "the connection was lost")
            return
        there = agent.pasts.setdefault(request["slot"], [])
        sent = sender.pasts[of]
        if request.get("record"):  # the record before the first call is of an earlier start of the job
            there[: len(sent)] = sent  # what it has beyond that, it keeps
        there += sent[len(there) :]  # a result never changes
        self._over(agent, number, self._got_past(agent, request["slot"]))
        if offered != number:
            self._over(sender, offered, {"sent": 1, "seconds": self.transfer_s})

    def _has_results(self, agent: Agent, slot: int, request: Mapping[str, Any]) -> bool:
        return len(agent.pasts.get(slot, ())) >= int(request["results"])

    def _got_past(self, agent: Agent, slot: int) -> dict[str, Any]:
        return {"results": len(agent.pasts[slot]), "bytes": 1, "seconds": self.transfer_s}

    # --- storage

    def path(self, request: Mapping[str, Any], commit: Commit) -> str:
        """Return the path of a commit's checkpoint."""
        return f"{request['place']}/{commit.number}"

    def _write(self, agent: Agent, number: int, request: Mapping[str, Any]) -> None:
        if agent.alive and number in agent.helpers:
            worlds = self._worlds(agent)
            for world in worlds:
                self._cluster.training.writes(world, 1)
            self._sim.later(self._cluster.drawn(self._times.write_s), self._written, agent, number, worlds)

    def _written(self, agent: Agent, number: int, worlds: list[World]) -> None:
        for world in worlds:
            self._cluster.training.writes(world, -1)
        more = {"bytes": self._times.bytes, "store": self._store(agent)}
        self._ends(agent, number, {"record": {}, "receipts": [], **more})

    def _worlds(self, agent: Agent) -> list[World]:
        return list(dict.fromkeys(each.world for each in agent.processes.values() if each.world is not None))

    def _store(self, agent: Agent) -> str:
        return "shared" if self.shared else agent.host

    def _seal(self, agent: Agent, number: int, request: Mapping[str, Any]) -> None:
        self._sim.later(self._times.seal_s, self._sealed, agent, number, request)

    def _sealed(self, agent: Agent, number: int, request: Mapping[str, Any]) -> None:
        commit = self.kept[tuple(request["commit"])]
        if agent.alive and number in agent.helpers:
            store = self._store(agent)
            self._stored[store] = max(commit, self._stored.get(store, commit))
            self._facts[store] = request.get("facts", {})
            newest = self._stored[store]
            pasts = [past for past in agent.pasts.values() if len(past) >= newest.call]
            self._pasts[store] = list(pasts[0][: newest.call]) if pasts else []
            answer = {"path": self.path(request, commit), "bytes": self._times.bytes}
            self._ends(agent, number, answer, sealed=commit if self.shared else None)

    def _verify(self, agent: Agent, number: int, request: Mapping[str, Any]) -> None:
        self._ends(agent, number, {"whole": True, "why": ""})

    def _load(self, agent: Agent, number: int, request: Mapping[str, Any]) -> None:
        if not agent.alive or number not in agent.helpers:
            return
        if self._store(agent) not in self._stored:
            self._ends(agent, number, {})
        else:
            self._sim.later(self._cluster.drawn(self._times.load_s), self._loads, agent, number, request)

    def _loads(self, agent: Agent, number: int, request: Mapping[str, Any]) -> None:
        if not agent.alive or number not in agent.helpers:
            return
        slots, stored = [int(slot) for slot in request["ranks"]], self._stored[self._store(agent)]
        for slot in slots:
            if (there := agent.memory.get(slot)) is None or there < stored:
                agent.seal(slot, stored)
            results = self._pasts.get(self._store(agent), [])
            past = agent.pasts.setdefault(slot, [])
            past += results[len(past) :]
        held = agent.memory[slots[0]]
        fields = {"path": self.path(request, stored), "step": stored.batch, "generation": stored.generation}
        more = {
            "slots": slots,
            "passed_over": [],
            "facts": self._facts[self._store(agent)],
            "held": held.held,
            "commit": [*stored.name],
        }
        self._ends(agent, number, {**fields, **more}, reported=tuple((slot, agent.memory[slot]) for slot in slots))

    def _held(self, agent: Agent, number: int, request: Mapping[str, Any]) -> None:
        agent.settle()
        held, stored = {}, self._stored.get(self._store(agent))
        for slot, commit in agent.memory.items():
            identity = [commit.lineage, *commit.name]
            self.kept[tuple(identity)] = commit
            held[str(slot)] = [identity, commit.batch, 1]
        newest: dict[str, Any] | None = None
        if stored is not None and (name := str(stored.number)) not in request.get("skip", ()):
            identity = [stored.lineage, *stored.name]
            newest = {"name": name, "path": self.path(request, stored), "identity": identity}
            newest |= {"step": stored.batch, "finished": self._facts[self._store(agent)].get("finished")}
        self._ends(agent, number, {"held": held, "newest": newest})

    def _ends(self, agent: Agent, number: int, answer: dict[str, Any], **more: Any) -> None:
        if agent.alive and number in agent.helpers:
            self._over(agent, number, answer, **more)

    # --- transfers between hosts

    def _linked(self, one: Agent, other: Agent) -> bool:
        cut = self._cluster.cut
        return one.alive and other.alive and (one is other or (one.host not in cut and other.host not in cut))

    def _arrives(
        self, agent: Agent, number: int, request: Mapping[str, Any], sender: Agent, offered: int, of: int
    ) -> None:
        whole = self._linked(sender, agent) and offered in sender.helpers and number in agent.helpers
        commit = self._found(sender, of, request)
        if not whole or commit is None:
            self._fails(agent, number, "the connection was lost")
            if offered != number:
                self._fails(sender, offered, "the connection was lost")
            return
        slot = request["slot"]
        process = agent.processes.get(slot)
        if process is not None and process.state in WITHIN:
            self._fails(agent, number, "the memory is in use")
            return
        if (there := agent.memory.get(slot)) is None or there < commit:
            agent.seal(slot, commit)
        commit = agent.memory[slot]
        took = {"bytes": self._times.bytes, "seconds": self.transfer_s}
        self._over(agent, number, {"held": commit.held, **took}, reported=((slot, commit),))
        if offered != number:
            self._over(sender, offered, {"sent": self._times.bytes, "seconds": self.transfer_s})
