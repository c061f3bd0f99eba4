"""The status of one training process, from its messages, and a limit on the rate of its messages. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeGuard

MESSAGES_A_SECOND: Final = 100.0
"""Most messages passed on in a second; records and others are counted separately."""
MAX_MODULES: Final = 20_000


class Imports(NamedTuple):
    """The imports of a process until its first step: see ``worker/process/imports.py``."""

    pid: int | None = None
    modules: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    env: Mapping[str, str | None] = MappingProxyType({})
    complete: bool = False

    def merged_with(self, message: Mapping[str, Any]) -> Imports:
        """Return these imports and those of one more message; a malformed message is ignored."""
        last = message.get("complete") is True
        pid, names = message.get("pid"), message.get("modules")
        own, env = (message.get("own"), message.get("env")) if last else ([], {})
        if self.complete or type(pid) is not int or not isinstance(env, dict):
            return self
        if not _are_names(names) or not _are_names(own) or len(self.modules) + len(names) > MAX_MODULES:
            return self
        return Imports(pid, (*self.modules, *names), tuple(own), env, last)

    def without(self, package: str) -> Imports:
        """Return these imports without those of a package, which counts as the script's own."""
        modules = tuple(name for name in self.modules if name.partition(".")[0] != package)
        return self._replace(modules=modules, own=(*self.own, package))


def _are_names(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


class WorkerStatus:
    """See the module's docstring."""

    def __init__(self, now: float) -> None:
        self.parked = False
        self.at_init = False
        """Whether it has parked in ``hvd.init()``, before its loop."""
        self.alone = False
        """Whether it was told to go on to its loop alone."""
        self.loops = False
        """Whether it has entered an elastic loop."""
        self.done = False
        self.call: int | None = None
        """The training call that it is in, or was in last."""
        self.collectives = False
        """Whether results of collectives before its first training call are, or will be, in the slot's past."""
        self.recorded: int | None = None
        """The generation of the world in which it has kept them."""
        self.reached = (0, 0)
        """How far it has come in its script: see ``host_barrier.py``."""
        self.waits = False
        """Whether it waits there, in a barrier."""
        self.warned = False
        """Whether its script has seen that it must leave."""
        self.terminated = False
        """Whether it got a SIGTERM that its script handles."""
        self.generation: int | None = None
        self.agreed: int | None = None
        """The newest generation with which it has agreed on the state."""
        self.heartbeat: dict[str, Any] | None = None
        self.imports = Imports()
        self._beat_at = now

    def received(self, now: float, message: dict[str, Any]) -> None:
        """Apply a message of the process. ``now``: seconds of the agent's clock, the time of a heartbeat."""
        say = message["say"]
        if say in ("parked", "looping", "done") and type(call := message.get("call")) is int:
            self.call = call
            self.reached = max(self.reached, (call, 0))
        match say:
            case "beat":
                self.heartbeat = {key: value for key, value in message.items() if key != "say"}
                self._beat_at = now
            case "parked":
                self.parked = True
                self.at_init = message.get("at") == "init" and message.get("later") is True
            case "synced":
                self.loops, self.agreed = True, self.generation
            case "looping":
                self.loops, self.done = True, False
                self.collectives |= message.get("collectives") is True
            case "result":
                if message.get("call") == 0:
                    self.collectives = message.get("kept") is True
                    self.recorded = self.generation if self.collectives else None
            case "barrier":
                call, number = message.get("call"), message.get("number")
                if type(call) is int and type(number) is int:
                    self.reached, self.waits = max(self.reached, (call, number)), True
            case "done":
                self.done = True
            case "warned":
                self.warned = message.get("leaving") is True
            case "terminated":
                self.terminated = True
            case "imported":
                self.imports = self.imports.merged_with(message)
            case "entered":
                self._know_generation(message)

    def seen_working(self, now: float) -> None:
        """Note that the process uses the processor, which counts as a heartbeat."""
        self._beat_at = now

    def note_message(self, message: Mapping[str, Any]) -> None:
        """Apply a message to the process: ``go`` and ``alone`` end parking, ``world`` sets the generation."""
        match message.get("tell"):
            case "go":
                self.parked = False
            case "alone":
                self.parked = self.at_init = False
                self.alone = True
            case "world":
                self._know_generation(message)
            case "barrier":
                self.waits = False

    def status(self) -> dict[str, object]:
        """The status for a new launcher. ``beat``: the newest heartbeat, None before the first."""
        world = {"generation": self.generation, "agreed": self.agreed}
        reported = {"loops": self.loops, "done": self.done, "warned": self.warned, "beat": self.heartbeat}
        before_loop = {name: True for name in ("at_init", "alone") if getattr(self, name)}
        terminated = {"terminated": True} if self.terminated else {}
        call = {} if self.call is None else {"call": self.call}
        collectives = {"collectives": True} if self.collectives else {}
        recorded = {} if self.recorded is None else {"recorded": self.recorded}
        return {
            "parked": self.parked,
            **before_loop,
            **world,
            **reported,
            **terminated,
            **call,
            **collectives,
            **recorded,
        }

    def _know_generation(self, message: Mapping[str, Any]) -> None:
        generation = message.get("generation")
        if type(generation) is int:
            self.generation = generation

    def age(self, now: float) -> float:
        """Seconds since the newest heartbeat."""
        return round(now - self._beat_at, 3)


UNKNOWN: Final = WorkerStatus(0.0)
"""The status of a process without a link."""


class RateLimit:
    """Allows ``MESSAGES_A_SECOND``, twice that in a burst; counts the rest."""

    def __init__(self, now: float) -> None:
        self._left = 2 * MESSAGES_A_SECOND
        self._at = now
        self._dropped = 0

    def allows(self, now: float) -> bool:
        """Return whether a message may pass at ``now``, in seconds; otherwise it is counted as dropped."""
        self._left = min(2 * MESSAGES_A_SECOND, self._left + (now - self._at) * MESSAGES_A_SECOND)
        self._at = now
        if self._left < 1:
            self._dropped += 1
            return False
        self._left -= 1
        return True

    def dropped(self) -> int:
        """Number of messages refused since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped
