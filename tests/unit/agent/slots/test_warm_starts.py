"""Which processes a template serves, and what it is made from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvd_elastic_ext.agent.orders import Start
from hvd_elastic_ext.agent.slots.warm_starts import Example, Imports, WarmStarts, may_be_forked, may_be_template
from hvd_elastic_ext.agent.slots.worker_link import WorkerStatus

WORDS = ("python", "train.py")
ORDER = Start(0, WORDS, {"A": "1", "HVD_ELASTIC_PLAN": "0,2,0,2,0,1", "CUDA_VISIBLE_DEVICES": "0,1"}, link=True)
KNOWN = Imports(7, ("torch",), (), {}, complete=True)
EXAMPLE = Example(ORDER, 7, KNOWN, (1, 1), 5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"slot": 3, "life": 9, "grace_s": 1.0, "core": True, "note": "1"}, ""),
        ({"env": {"A": "1", "HVD_ELASTIC_PLAN": "1,2", "HVD_ELASTIC_INCARNATION": "2"}}, ""),
        ({"env": {"A": "2"}}, "A has another value"),
        ({"env": {}}, "A has another value"),
        ({"env": {"A": "1", "LD_LIBRARY_PATH": "/opt"}}, "LD_LIBRARY_PATH has another value"),
        ({"env": {"A": "1", "HOME": "/root"}}, ""),
        ({"argv": ("python", "train.py", "--lr", "1")}, "its command or folder is another one"),
        ({"cwd": "/elsewhere"}, "its command or folder is another one"),
        ({"link": False}, "it has no link"),
        ({"output": "stderr"}, "it has no link"),
    ],
)
def test_a_process_is_forked_if_its_imports_would_find_the_same(change: dict[str, object], reason: str) -> None:
    asked = ORDER._replace(**change)  # type: ignore[arg-type]
    assert may_be_forked(asked, ORDER, {"HOME": "/root"}) == (not reason, reason)


@pytest.mark.parametrize(
    ("example", "words", "reason"),
    [
        (EXAMPLE, WORDS, ""),
        (EXAMPLE._replace(imports=Imports()), WORDS, "it has not reported its imports"),
        (EXAMPLE._replace(imports=KNOWN._replace(complete=False)), WORDS, "it has not reported its imports"),
        (EXAMPLE._replace(pid=6), WORDS, "its command is not Python's own"),  # as behind a shell
        (EXAMPLE, ("sh", "train.sh"), "its command is not Python's own"),
    ],
)
def test_a_template_is_made_like_a_process_that_is_python_itself(
    example: Example, words: tuple[str, ...], reason: str
) -> None:
    assert may_be_template(example, words) == (not reason, reason)


class Services:
    """What :class:`WarmStarts` uses of its agent."""

    def __init__(self) -> None:
        self.time = 100.0
        self.told: list[tuple[str, dict[str, Any]]] = []

    def now(self) -> float:
        return self.time

    def tell(self, event: str, **fields: Any) -> None:
        self.told.append((event, fields))

    def lost_supervisor(self) -> None:
        """There are no processes."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Start]:
    """The orders by which templates were made."""
    orders: list[Start] = []

    def make(starts: WarmStarts, order: Start, imports: Imports) -> None:
        orders.append(order)
        starts._template = SimpleNamespace(pid=None, order=order, imports=imports, close=lambda: None)

    monkeypatch.setattr(WarmStarts, "_make", make)
    return orders


def look(starts: WarmStarts, agent: Services, pid: int, *words: str, at: float, step: int) -> None:
    agent.time = at
    order = EXAMPLE.order._replace(argv=words)
    example = EXAMPLE._replace(order=order, pid=pid, imports=KNOWN._replace(pid=pid), step=step)
    starts.look([(0, example)])


def own_words() -> tuple[str, ...]:
    return tuple(map(os.fsdecode, Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]))


def test_an_example_that_is_just_ending_does_not_turn_templates_off(made: list[Start]) -> None:
    agent = Services()
    starts = WarmStarts(agent)  # type: ignore[arg-type]
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has collected it
        look(starts, agent, ended.pid, "true", at=100.0, step=1)
        look(starts, agent, ended.pid, "true", at=106.0, step=2)
    assert (agent.told, made) == ([], [])
    look(starts, agent, os.getpid(), *own_words(), at=107.0, step=3)
    assert len(made) == 1


def test_after_a_template_has_ended_the_next_one_waits_until_the_host_is_calm_again(made: list[Start]) -> None:
    agent = Services()
    starts = WarmStarts(agent)  # type: ignore[arg-type]
    for at, count in ((100.0, 0), (106.0, 1)):
        look(starts, agent, os.getpid(), *own_words(), at=at, step=int(at))
        assert len(made) == count
    starts._received({})  # it has ended
    for at, count in ((107.0, 1), (110.0, 1), (113.0, 2)):
        look(starts, agent, os.getpid(), *own_words(), at=at, step=int(at))
        assert len(made) == count


def test_imports_come_in_several_messages_and_the_last_completes_them() -> None:
    worker = WorkerStatus(0.0)
    worker.received(1.0, {"say": "imported", "pid": 7, "modules": ["a", "b"]})
    assert not worker.imports.complete
    last = {"say": "imported", "pid": 7, "modules": ["c"], "own": ["mine"], "env": {"A": None}, "complete": True}
    worker.received(2.0, last)
    worker.received(3.0, {**last, "modules": ["d"]})
    assert worker.imports == (7, ("a", "b", "c"), ("mine",), {"A": None}, True)


def test_a_package_that_is_left_out_counts_as_the_scripts_own() -> None:
    imports = Imports(7, ("a", "ab", "a.b", "c"), ("mine",), {}, complete=True)
    assert imports.without("a") == (7, ("ab", "c"), ("mine", "a"), {}, True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pid": "7"}, {"pid": None}, {"modules": None}, {"modules": [1]}, {"modules": "torch"}, {"own": None},
        {"own": [{}]}, {"env": None}, {"env": []}, {"modules": ["x"] * 20_001},
    ],
)  # fmt: skip
def test_a_malformed_message_about_imports_is_ignored(wrong: dict[str, object]) -> None:
    worker = WorkerStatus(0.0)
    right = {"say": "imported", "pid": 7, "modules": ["c"], "own": [], "env": {}, "complete": True}
    worker.received(1.0, {**right, **wrong})
    assert worker.imports == Imports()
