"""Decides when the agent makes a template, and which processes start from it.

A template is made during training, with the imports of a training process. :func:`may_be_forked` decides which
processes may start from it. After its end a new one is made, at most :data:`MAX_TEMPLATE_ENDS` times.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.agent.orders import Start
from hvd_elastic_ext.agent.slots.worker_status import Imports
from hvd_elastic_ext.core.call_results import RESULTS
from hvd_elastic_ext.core.messages.slot_protocol import (
    COMMITS,
    DEVICE,
    GENERATION,
    INCARNATION,
    LINK,
    PLAN,
    RENDEZVOUS_PORT,
)
from hvd_elastic_ext.io import process_tree

if TYPE_CHECKING:
    from hvd_elastic_ext.agent.slots.slot import Slot
    from hvd_elastic_ext.agent.slots.supervisor import SupervisorPipes
    from hvd_elastic_ext.agent.slots.template import Template
    from hvd_elastic_ext.agent.slots.worker_link import AgentServices, Inheritance

CALM_S: Final = 5.0
"""Seconds of training in which nothing starts or changes on the host, before a template is made."""
LOOK_S: Final = 0.5
MAX_TEMPLATE_ENDS: Final = 3
"""Most templates that may end by themselves."""
MAX_WITHOUT: Final = 8
"""Most packages that are left out, one after another, because they cannot be imported before the script."""
OF_EACH_PROCESS: Final = frozenset(
    {COMMITS, RESULTS, DEVICE, GENERATION, INCARNATION, LINK, PLAN, RENDEZVOUS_PORT, "CUDA_VISIBLE_DEVICES"}
)
"""Variables that may differ between processes of a host. No import reads them, except to open a device; a template
with an open device is not used."""


class Example(NamedTuple):
    """A process that trains. ``place`` changes with each process and world; ``step`` is its newest known step."""

    order: Start
    pid: int
    imports: Imports
    place: tuple[int, int | None]
    step: int | None


def may_be_forked(order: Start, template: Start, environ: Mapping[str, str]) -> tuple[bool, str]:
    """Whether the process of ``order`` may be forked from the template, which was started with an earlier order.
    ``environ``: the agent's own environment. Pure."""
    if not order.link or order.output != "frames":
        return False, "it has no link"
    if (order.argv, order.cwd) != (template.argv, template.cwd):
        return False, "its command or folder is another one"
    before, now = (_lasting({**environ, **each.env}) for each in (template, order))
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if changed:
        return False, f"{changed[0]} has another value"
    return True, ""


def _lasting(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in OF_EACH_PROCESS}


def may_be_template(example: Example, words: tuple[str, ...]) -> tuple[bool, str]:
    """Whether a template may be made like ``example``, which runs with ``words`` as its command line. Pure."""
    if not example.imports.complete:
        return False, "it has not reported its imports"
    if example.imports.pid != example.pid or words != example.order.argv:
        return False, "its command is not Python's own"
    return True, ""


class WarmStarts:
    """See the module's docstring."""

    def __init__(self, agent: AgentServices) -> None:
        self._agent = agent
        self._template: Template | None = None
        self._off = False
        self._ends = self._left_out = 0
        self._look_at = 0.0
        self._seen: dict[int, tuple[int, int | None]] = {}
        self._steps: dict[int, int | None] = {}
        self._calm_since = 0.0
        self._killed: set[int] = set()

    @property
    def pid(self) -> int | None:
        """The template's process number, while it lives or is not reaped yet."""
        return None if self._template is None else self._template.pid

    def fork(self, order: Start, inheritance: Inheritance, pipes: SupervisorPipes) -> int | None:
        """Start a process and its supervisor from the template. Return the supervisor's process number; None if it must
        start as usual."""
        self._seen = {}
        template = self._template
        if template is None:
            return None
        may, _ = may_be_forked(order, template.order, os.environ)
        if not may:
            self.close()  # a template that fits is made later
            return None
        if not template.ready:
            return None
        supervisor = template.fork(order, inheritance, pipes)
        if supervisor is None:
            self._lost("it does not answer")
        return supervisor

    def look(self, slots: Mapping[int, Slot]) -> None:
        """Make a template when training runs in all slots that are in use."""
        now = self._agent.now()
        if self._template is not None or self._off or now < self._look_at:
            return
        self._look_at = now + LOOK_S
        processes = {number: slot.example for number, slot in slots.items() if not slot.at_rest}
        examples = {number: example for number, example in processes.items() if example is not None}
        places = {slot: example.place for slot, example in examples.items()}
        if len(examples) < len(processes) or not examples or places != self._seen:
            self._seen, self._calm_since = places, now
            self._steps = {slot: example.step for slot, example in examples.items()}
            return
        if now < self._calm_since + CALM_S:
            return
        example = next((each for slot, each in examples.items() if each.step != self._steps[slot]), None)
        if example is not None:
            self._begin(example)

    def _begin(self, example: Example) -> None:
        words = _words(example.pid)
        if not words:
            return  # it is ending: the next process may be an example
        may, reason = may_be_template(example, words)
        if may:
            self._left_out = 0
            self._make(example.order, example.imports)
        else:
            self._refuse(reason)

    def _make(self, order: Start, imports: Imports) -> None:
        from hvd_elastic_ext.agent.slots.template import Template

        try:
            self._template = Template(self._agent, order, imports, received=self._received)
        except OSError as error:
            self._refuse(str(error))

    def _received(self, message: Mapping[str, Any]) -> None:
        template, package = self._template, message.get("without")
        if "ready" in message:
            self._agent.tell("template", ready=True, memory=message["ready"])
        elif template is not None and isinstance(package, str) and self._left_out < MAX_WITHOUT:
            self._left_out += 1
            self.close()
            self._make(template.order, template.imports.without(package))
        elif "unfit" in message:
            self._refuse(str(message["unfit"]))
        else:
            self._lost("it has ended")

    def _refuse(self, reason: str) -> None:
        self._off = True
        self.close()
        self._agent.tell("template", ready=False, reason=reason)

    def _lost(self, reason: str) -> None:
        self._ends += 1
        self.close()
        if self._ends >= MAX_TEMPLATE_ENDS:
            self._refuse(reason)

    def reaped(self, pid: int, code: int) -> None:
        """Note the end of a child of the agent, perhaps the template."""
        self._killed.discard(pid)
        if self._template is not None:
            self._template.reaped(pid, code)

    def try_again(self) -> None:
        """Allow templates again, for a new launcher, which may have another command."""
        self._off, self._ends = False, 0

    def close(self) -> None:
        """Kill the template, and the processes that its imports have started. The next one waits until the host is calm
        again.
        """
        template, self._template, self._seen = self._template, None, {}
        if template is not None:
            self._killed |= set() if template.pid is None else {template.pid}
            template.close()
            self._agent.lost_supervisor()

    def end(self, within_s: float) -> None:
        """Kill the template, and wait for its end."""
        self.close()
        process_tree.reap(self._killed, within_s=within_s)


def _words(pid: int) -> tuple[str, ...]:
    """The command line of a process; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - pathlib takes long to load
            return tuple(os.fsdecode(word) for word in file.read().split(b"\0")[:-1])
    except OSError:
        return ()
