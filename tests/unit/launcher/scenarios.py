"""Scenarios of the simulated cluster as text. Each line, or part before a semicolon, is a step: an event or a check.

train a b heartbeat_timeout_s=3; run 2; cut b     hosts with one slot each train; fields of JobOptions or WorldLimits
until a <4.5                                      wait until exactly these hosts train, by rank, for 4.5 s at most
is exited.cause crashed, silent                   check this field of all such journal lines, in their order
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from hvd_elastic_ext.core.errors import HOSTS_KEPT, Asleep, Interrupted, JobFailed
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.launcher.checkpoints import attempt
from hvd_elastic_ext.launcher.driver.events import End, Expected, HostsChanged
from hvd_elastic_ext.launcher.membership.world_change import WorldLimits
from tests.unit.launcher.simulated_cluster import Cluster, JobOptions, storing
from tests.unit.launcher.simulated_processes import Process, Training

_LIMITS = {field.name for field in fields(WorldLimits)}


def play(text: str, kind: Callable[..., Any] = Cluster, *, steps: type[Scenario] | None = None, **options: Any) -> Any:
    """Play a scenario. Return the cluster. The error of a failed step names the step and has the journal. ``options``:
    see :meth:`begin_`."""
    played = (steps or Scenario)(kind, options)
    for step in filter(None, map(str.strip, re.split(r"[;\n]", text))):
        try:
            played.do(*step.split(" ", 1))
        except AssertionError as error:
            raise AssertionError(f"at {step!r}: {error}\n{played.cluster.journal.getvalue()}") from error
    return played.cluster


_WHOLE = frozenset({"is", "only", "last", "says", "fails", "notice", "departs"})
"""Steps with text as their argument."""
_SETS = frozenset({"cut", "dead", "deaf", "mute", "dumb", "undying"})
"""Steps such as ``cut b``, which add hosts to these sets of the cluster."""
_NUMBERS = {
    "boot": "boot_s",  # `boot b 20`: seconds until a process on b is ready
    "dies": "ends_s",  # until a process that is told to stop has ended
    "comes": "join_s",  # from an agent's start until it connects
    "clears": "clears_s",  # `clears 3`: until agents have ended
    "step": "training.step_s",  # until ranks that have to leave reach their next step
    "takes": "helpers.takes_s",  # `takes write 10`: duration of a kind of helper
    "held": "helpers.held_s",  # additional time for helpers of a host
    "busy": "training.busy_s",  # until ranks keep a named commit
    "late": "training.late",  # how many messages with a named commit arrive too late
}


class Scenario:
    """One method for each kind of step. ``took``: duration of the last wait. ``options``: defaults for the steps'
    options."""

    def __init__(self, kind: Callable[..., Any], options: Mapping[str, Any]) -> None:
        plain = isinstance(kind, type) and issubclass(kind, Training)
        self.kind = partial(Cluster, training=kind) if plain else kind
        self.options, self.cluster, self.took = options, Cluster(), 0.0

    def do(self, verb: str, rest: str = "") -> None:
        """Do one step."""
        if verb in _SETS:
            getattr(self.cluster, verb).update(rest.split())
        elif verb in _NUMBERS:
            self._set(_NUMBERS[verb], *rest.split())
        else:
            getattr(self, verb.replace("-", "_") + "_")(*([rest] if verb in _WHOLE else rest.split()))

    def _set(self, what: str, *words: str) -> None:
        """``b 20`` for one host, or only ``20`` where all have the same value."""
        *of, number = words
        part, _, name = what.rpartition(".")
        owner = getattr(self.cluster, part) if part else self.cluster
        if of:
            getattr(owner, name)[of[0]] = float(number)
        else:
            setattr(owner, name, float(number))

    # --- beginnings

    def begin_(self, *words: str) -> None:
        """Start a launcher. Takes options only; ``every=5``: how often checkpoints are made."""
        said = {name: _value(text) for name, _, text in (word.partition("=") for word in words)}
        options = {**self.options, **said}
        limits = WorldLimits(**{"settle_s": 0.1, **{name: options.pop(name) for name in _LIMITS & options.keys()}})
        every = options.pop("every", None)
        made = JobOptions if every is None else partial(storing, str(every))
        self.cluster = self.kind(made(limits=limits, **options))

    def start_(self, *words: str) -> None:
        """Start a launcher and publish its hosts; the first world needs all of them."""
        hosts = [word for word in words if "=" not in word]
        self.begin_(f"start={sum(_slots(hosts).values())}", *(word for word in words if "=" in word))
        self.hosts_(*hosts)

    def train_(self, *words: str) -> None:
        self.start_(*words)
        hosts = _slots([word for word in words if "=" not in word])
        world = [host for host, slots in hosts.items() for _ in range(slots)]
        self._wait(lambda _: self.cluster.world == world)

    def inherit_(self, *words: str) -> None:
        """Start a launcher whose hosts train in generation 7 under an earlier one; ``c=12``: c connects after 12 s."""
        self.cluster.join_s.update({host: float(at) for host, _, at in (word.partition("=") for word in words) if at})
        hosts = [word.partition("=")[0] for word in words]
        self.left_(*hosts)
        self.expect_(*hosts)

    def left_(self, *hosts: str) -> None:
        """An earlier launcher has left a world, of which this one does not know yet."""
        self.cluster.options.limits = replace(self.cluster.options.limits, start=len(hosts))
        self.hosts_(*hosts)
        self.cluster.inherit(*hosts)

    def expect_(self, *hosts: str) -> None:
        """The launcher learns of these hosts of the earlier launcher."""
        until = self.cluster.clock.mono() + self.cluster.options.orphan_grace_s
        self.cluster.driver.tell(Expected(tuple(Host(name, 1) for name in hosts), until))

    # --- events

    def run_(self, seconds: str) -> None:
        self.cluster.run(float(seconds))

    def hosts_(self, *hosts: str) -> None:
        self.cluster.hosts(**_slots(hosts))

    def refuse_list_(self) -> None:
        """The newest list cannot be read: the earlier hosts stay."""
        self.cluster.driver.tell(HostsChanged(HostSet(), refused=f"hosts: does not exist{HOSTS_KEPT}"))

    def pods_(self, *pods: str) -> None:
        """``a=1``: publish the pod a with the UID 1."""
        named = [word.split("=") for word in pods]
        self.cluster.publish(HostSet(tuple(Host(name, 1, uid=uid, node=f"node-of-{uid}") for name, uid in named)))

    def lives_(self, *pods: str) -> None:
        """``a=1``: publish the pod a with its first container."""
        named = [word.split("=") for word in pods]
        hosts = tuple(Host(name, 1, uid=f"uid-{name}", node="n", life=life) for name, life in named)
        self.cluster.publish(HostSet(hosts))

    def departs_(self, text: str) -> None:
        """``b reason / a c``: b is about to go, a and c are listed."""
        going, _, listed = text.partition("/")
        host, _, reason = going.strip().partition(" ")
        self.cluster.publish(HostSet.of(_slots(listed.split())), {host: (reason, None)})

    def kill_(self, where: str, code: str = "137") -> None:
        host, _, slot = where.partition(":")
        self.cluster.kill(host, int(slot or 0), code=int(code))

    def fail_(self, host: str, *error: str) -> None:
        self.cluster.fail(host, " ".join(error))

    def stop_(self, host: str) -> None:
        self._process(host).stopped = True

    def silent_(self, *hosts: str) -> None:
        """Helpers of these hosts never answer."""
        self.cluster.helpers.silent.update(hosts)

    def wedge_(self, host: str, wedged: str = "1") -> None:
        """The host's process waits for a peer, even if the peer is lost."""
        self._process(host).wedged = wedged == "1"

    def stick_(self, host: str, stuck: str = "1") -> None:
        """The main thread of the host's process stops."""
        self._process(host).stuck = stuck == "1"

    def hang_(self, host: str) -> None:
        """The main thread of the host's process stops for ever."""
        self._process(host).stuck = self._process(host).wedged = True

    def beats_(self, host: str) -> None:
        """The script of the host's process calls heartbeat()."""
        self._process(host).beats = True

    def pace_(self, host: str, seconds: str) -> None:
        for process in self.cluster.members:
            if host in ("*", process.host):
                process.step_s = float(seconds)

    def share_(self, host: str, rows: str, total: str) -> None:
        """The host's process has so many samples of each global batch."""
        self._process(host).share = [int(rows), int(total)]

    def lose_world_(self, host: str) -> None:
        self.cluster.lose_world(host)

    def lose_agent_(self, host: str) -> None:
        self.cluster.lose_agent(host)

    def vanish_(self, host: str) -> None:
        """A host and its processes are gone, but the connection does not break."""
        self.cluster.vanish(host)
        self.cluster.lose_world("a")

    def container_(self, host: str) -> None:
        """The container ends. With ssh, the launcher sees only a lost connection."""
        agent = self.cluster.agents[host]
        self.cluster.disconnect(host)
        self.cluster.apart.discard(host)
        self.cluster.agent_dies(agent)

    def disconnect_(self, *hosts: str) -> None:
        for host in hosts:
            self.cluster.disconnect(host)

    def reconnect_(self, host: str, again_s: str = "1.2") -> None:
        self.cluster.reconnect(host, again_s=float(again_s))

    def join_(self, host: str) -> None:
        self.cluster.join(host)

    def back_(self, *hosts: str) -> None:
        """The network of these hosts works again."""
        self.cluster.cut.difference_update(hosts)
        self.cluster.dead.difference_update(hosts)

    def misfit_(self, host: str, *why: str) -> None:
        self.cluster.misfits[host] = " ".join(why)
        if not why:
            del self.cluster.misfits[host]

    def lose_(self, what: str, count: str) -> None:
        """The next ``count`` messages of a kind are lost."""
        self.cluster.training.lose[what] = self.cluster.training.tells[what] + int(count)

    def lose_news_(self, what: str, count: str) -> None:
        self.cluster.lose_news[what] = int(count)

    def sigterm_(self, host: str) -> None:
        self.cluster.agents[host].terminate()

    def notice_(self, text: str) -> None:
        """``b 120 spot reclaim``: the notice; ``?``: its time is unknown."""
        host, in_s, reason = text.split(" ", 2)
        self.cluster.write_notice(host, reason, None if in_s == "?" else float(in_s))

    def stay_(self, host: str) -> None:
        """The notice is withdrawn."""
        self.cluster.write_notice(host, "")

    def warned_(self, host: str, leaving: str = "1") -> None:
        self.cluster.training.warn(host, leaving=leaving == "1")

    def terminated_(self, host: str) -> None:
        """The processes of a host have got a SIGTERM that their script handles."""
        self.cluster.training.says(host, "terminated")

    def standstill_(self, seconds: str) -> None:
        self.cluster.standstill(float(seconds))

    def done_(self, *hosts: str) -> None:
        for host in hosts:
            self.cluster.training.says(host, "done")

    def loop_(self, *hosts: str) -> None:
        """The training functions on these hosts begin."""
        for host in hosts:
            self.cluster.training.says(host, "looping")
            self.cluster.training.says(host, "synced")

    def well_(self, host: str, code: str = "0") -> None:
        """The processes of a host end, and the others do not notice it."""
        self.cluster.training.ends_unnoticed(host, int(code))

    def finish_(self, hanging: str | None = None) -> None:
        self.cluster.training.finish(hanging=hanging)

    def end_(self) -> None:
        self.cluster.driver.tell(End(JobFailed("told to")))

    def interrupt_(self) -> None:
        self.cluster.driver.tell(End(Interrupted(15, "stopped by SIGTERM")))

    def ctrl_c_(self) -> None:
        self.cluster.driver.tell(End(Interrupted(2, "stopped by SIGINT")))

    # --- waits

    def until_(self, *words: str) -> None:
        self._wait(lambda hosts: self.cluster.world == hosts, *words)

    def formed_(self, *words: str) -> None:
        self._wait(lambda hosts: self.cluster.world == hosts and self.cluster.driver.job.formed, *words)

    def together_(self, *words: str) -> None:
        """Wait until exactly these hosts train, in any order."""
        self._wait(lambda hosts: sorted(self.cluster.world) == sorted(hosts), *words)

    def members_(self, *words: str) -> None:
        """Wait until these hosts are the members of the newest world, and it has formed."""
        job = self.cluster.driver.job
        self._wait(lambda hosts: [life.seat.host for life in job.world.members] == hosts and job.formed, *words)

    def has_(self, *words: str) -> None:
        """Wait until a process of that host trains."""
        self._wait(lambda hosts: hosts[0] in self.cluster.world, *words)

    def without_(self, *words: str) -> None:
        """Wait until the newest world has formed without processes of that host."""
        cluster = self.cluster
        self._wait(lambda hosts: hosts[0] not in cluster.world and cluster.driver.job.formed, *words)

    def size_(self, *words: str) -> None:
        self._wait(lambda given: len(self.cluster.world) == int(given[0]), *words)

    def begun_(self, *words: str) -> None:
        """Wait until the world of that generation begins to form."""
        self._wait(lambda given: self.cluster.driver.job.generation == int(given[0]), *words)

    def parked_(self, *words: str) -> None:
        self._wait(lambda given: self.cluster.events("parked")[-1]["host"] == given[0], *words)

    def state_(self, *words: str) -> None:
        """``b waiting``: wait until a process of b is in that state."""
        self._wait(lambda w: w[1] in self._states(w[0]), *words)

    def ending_(self, *words: str) -> None:
        """Wait until the host's agent is about to end."""
        self._wait(lambda hosts: hosts[0] in self.cluster.finishing, *words)

    def gone_(self, *words: str) -> None:
        """Wait until these hosts have no agent."""
        self._wait(lambda hosts: not set(hosts) & self.cluster.agents.keys(), *words)

    def sees_(self, *words: str) -> None:
        """Wait for so many journal lines of an event; one if no number is given."""
        self._wait(lambda w: len(self.cluster.events(w[0])) >= int(w[1] if w[1:] else 1), *words)

    def told_(self, *words: str) -> None:
        """Wait until so many messages of a kind were sent."""
        self._wait(lambda w: self.cluster.training.tells[w[0]] == int(w[1]), *words)

    def over_(self, *words: str) -> None:
        self._wait(lambda _: self.cluster.driver.over, *words)

    def ended_well_(self, *words: str) -> None:
        self.over_(*words)
        self.goes_on_()

    def fails_(self, text: str) -> None:
        """Wait, two minutes at most, until the job fails. The reason must contain ``text``."""
        self._wait(lambda _: self.cluster.driver.outcome is not None, "<120")
        assert text in str(self.cluster.driver.outcome), self.cluster.driver.outcome

    def took_(self, low: str, high: str = "inf") -> None:
        """Check the duration of the last wait."""
        assert float(low) < self.took < float(high), self.took

    # --- checks

    def world_(self, *hosts: str) -> None:
        assert self.cluster.world == list(hosts), self.cluster.world

    def generation_(self, number: str) -> None:
        assert self.cluster.driver.job.generation == int(number), self.cluster.driver.job.generation

    def alive_(self, host: str) -> None:
        assert self.cluster.agents[host].processes, self.cluster.agents

    def number_(self, event: str, count: str) -> None:
        assert len(self.cluster.events(event)) == int(count), len(self.cluster.events(event))

    def messages_(self, what: str, count: str) -> None:
        assert self.cluster.training.tells[what] == int(count), self.cluster.training.tells[what]

    def no_(self, *events: str) -> None:
        found = [entry for event in events for entry in self.cluster.events(event)]
        assert not found, found

    def is_(self, text: str) -> None:
        where, expected = _field(text)
        assert self._values(where) == expected, self._values(where)

    def only_(self, text: str) -> None:
        """As ``is``, but as sets."""
        where, expected = _field(text)
        assert set(self._values(where)) == set(expected), self._values(where)

    def last_(self, text: str) -> None:
        where, expected = _field(text)
        assert self._values(where)[-1:] == expected, self._values(where)

    def says_(self, text: str) -> None:
        """The field of the last such line contains the text."""
        where, _, expected = text.partition(" ")
        assert expected in self._values(where)[-1], self._values(where)

    def goes_on_(self) -> None:
        assert self.cluster.driver.outcome is None, self.cluster.driver.outcome

    def reclaimed_(self, *hosts: str) -> None:
        """Exactly the processes of these hosts were told to save their state."""
        workers = self.cluster.driver.job.roster.workers.values()
        found = [worker.seat.host for worker in workers if worker.reclaimed]
        assert found == list(hosts), found

    def processes_(self, *lives: str) -> None:
        """``a:1``: a process of a trains, and is the first one of its slot."""
        found = sorted(f"{each.host}:{each.life}" for each in self.cluster.members)
        assert found == list(lives), found

    def untold_(self, *hosts: str) -> None:
        """Exactly these hosts could not be told to end."""
        assert sorted(self.cluster.driver.job.shutdown.unconnected) == list(hosts), self.cluster.driver.job.shutdown

    def hung_up_(self, times: str) -> None:
        assert self.cluster.hung_up == int(times), self.cluster.hung_up

    def undisturbed_(self, *hosts: str) -> None:
        """These hosts train on in the inherited world, without any message."""
        assert not self.cluster.journal.getvalue()
        self.messages_("update", "0")
        self.messages_("fence", "0")
        assert {(process.generation, process.life) for process in self.cluster.members} == {(7, 4)}
        assert sorted(self.cluster.world) == list(hosts), self.cluster.world
        self.members_(*hosts, "<0.1")
        assert self.cluster.driver.job.standing

    def running_(self) -> None:
        assert not self.cluster.driver.over

    def untouched_(self) -> None:
        """No process was blamed, ended or interrupted since the start."""
        self.no_("fenced", "struck", "exited")
        self.is_("resized.cause start")
        self.messages_("update", "0")

    def blameless_(self) -> None:
        self.no_("struck", "fenced", "rolled_back")

    def sent_(self, *transfers: str) -> None:
        """``a>b``: commits were sent from a to b, in this order."""
        found = [f"{source}>{target}" for source, target, _ in self.cluster.helpers.transferred]
        assert found == list(transfers), found

    # --- checkpoints, loads, saved memory

    def refuses_(self, host: str, helper: str, *why: str) -> None:
        self.cluster.helpers.answers[host, helper] = {"failed": " ".join(why)}

    def breaks_(self, host: str, helper: str) -> None:
        """The helper's process on that host fails."""
        self.cluster.helpers.answers[host, helper] = 1

    def found_(self, *hosts: str) -> None:
        """These hosts load a checkpoint of step 40."""
        for host in hosts:
            self.cluster.helpers.answers[host, "load"] = {"path": "/store/y", "step": 40, "generation": 3}

    def damaged_(self, host: str) -> None:
        """All checkpoints on that host are damaged."""
        self.cluster.helpers.answers[host, "load"] = {"failed": "all are damaged", "for_good": True}

    def unwritable_(self, host: str) -> None:
        """The host cannot write checkpoints."""
        why = {"failed": "Read-only file system; give a folder", "for_good": True, "unwritable": True}
        self.cluster.helpers.answers[host, "load"] = why

    def trains_(self, *words: str) -> None:
        """Wait until a process trains."""
        self._wait(lambda _: self.cluster.members, *words)

    def first_world_(self, host: str) -> None:
        """Check that the first world included that host."""
        assert host in self.cluster.events("resized")[0]["added"]

    def loaded_(self, host: str, times: str) -> None:
        found = [each for each, _ in self.cluster.helpers.of("load")].count(host)
        assert found >= int(times), found

    def forgotten_(self, host: str) -> None:
        """Check that the memory of the host's slot 0 was given back, and of no other slot."""
        assert self.cluster.forgotten == [(host, 0)], self.cluster.forgotten

    def finished_(self, finished: str) -> None:
        """Check whether the newest checkpoint says that it is the end of training."""
        assert str(self.cluster.helpers.of("seal")[-1][1]["facts"].get("finished")) == finished

    def accepts_(self, host: str, helper: str) -> None:
        del self.cluster.helpers.answers[host, helper]

    def saves_(self, *why: str) -> None:
        """Rank 0 has a function that saves files; ``why`` it fails, if it does."""
        self.cluster.training.saves = " ".join(why)

    def request_(self) -> None:
        """Request a checkpoint beyond which no process trains."""
        self.cluster.ask(attempt.request)

    def attempts_(self, *words: str) -> None:
        """``1``: wait until an attempt is in progress; ``0``: until none is."""
        self._wait(lambda w: (self.cluster.driver.job.checkpoints.attempt is not None) == (w[0] == "1"), *words)

    def let_on_(self) -> None:
        """Check that processes were allowed to train on."""
        assert None in self.cluster.training.stays

    def lose_b_(self) -> None:
        self.cluster.lose_agent("b")
        self.cluster.lose_world("a")
        self.cluster.hosts(a=1)

    def asked_(self, *words: str) -> None:
        """Wait for so many requests for a kind of helper; one if no number is given."""
        self._wait(lambda w: len(self.cluster.helpers.of(w[0])) >= int(w[1] if w[1:] else 1), *words)

    def helpers_(self, kind: str, *hosts: str) -> None:
        """Check which hosts were asked for that kind of helper, in order."""
        found = [host for host, _ in self.cluster.helpers.of(kind)]
        assert found == list(hosts), found

    def dropped_(self, *hosts: str) -> None:
        assert self.cluster.helpers.dropped == list(hosts), self.cluster.helpers.dropped

    def stays_(self, *words: str) -> None:
        """Wait for a message that lets no process train beyond the named commit."""
        self._wait(lambda _: True in self.cluster.training.stays, *words)

    def held_back_(self) -> None:
        """Check that no process may train beyond the last named commit."""
        assert None not in self.cluster.training.stays
        assert self.cluster.training.stays[-1] is True

    def released_(self) -> None:
        """Check that all processes may train on."""
        assert self.cluster.training.stays[-1] is None, self.cluster.training.stays

    def note_step_(self, host: str) -> None:
        self.step = self._process(host).batch

    def sealed_there_(self) -> None:
        """Check that the newest checkpoint is of the step noted by ``note-step``."""
        assert self.cluster.events("sealed")[-1]["step"] == self.step

    def asleep_(self, path: str = "/store/x", within: str = "<120") -> None:
        self.over_(within)
        assert isinstance(self.cluster.driver.outcome, Asleep), self.cluster.driver.outcome
        assert str(self.cluster.driver.outcome.path) == path

    # --- of all

    def _states(self, host: str) -> list[str]:
        here = [each for each in self.cluster.training.all if each.host == host]
        return ["init" if each.state == "parked" and each.at_init else each.state for each in here]

    def _process(self, host: str) -> Process:
        return next(iter(self.cluster.agents[host].processes.values()))

    def _values(self, where: str) -> list[str]:
        event, field = where.split(".")
        return [str(entry.get(field)) for entry in self.cluster.events(event)]

    def _wait(self, condition: Callable[..., object], *words: str) -> None:
        """``<5`` among the words: wait 5 s at most, otherwise 60 s."""
        within = next((float(word[1:]) for word in words if word[0] == "<"), 60.0)
        given = [word for word in words if word[0] != "<"]
        self.took = self.cluster.until(lambda: condition(given), within=within)


def _field(text: str) -> tuple[str, list[str]]:
    where, _, values = text.partition(" ")
    return where, [value.strip() for value in values.split(",")]


def _slots(hosts: Any) -> Mapping[str, int]:
    """Read hosts such as ``a b:2``."""
    return {name: int(slots or 1) for name, _, slots in (word.partition(":") for word in hosts)}


def _value(text: str) -> Any:
    try:
        return literal_eval(text)
    except ValueError:
        return text
