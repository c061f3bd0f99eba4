"""Which processes a template serves, and what it is made from."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.agent.orders.orders import Start
from hvd_elastic_ext.agent.slots.warm_starts import Example, may_be_forked, may_be_template
from hvd_elastic_ext.agent.slots.worker_status import Imports, WorkerStatus

WORDS = ("python", "train.py")
ORDER = Start(0, WORDS, {"A": "1", "HVD_ELASTIC_PLAN": "0,2,0,2,0,1", "CUDA_VISIBLE_DEVICES": "0,1"}, link=True)
KNOWN = Imports(7, ("torch",), (), {}, complete=True)
EXAMPLE = Example(ORDER._replace(env={"HVD_ELASTIC_PRELOAD": "auto"}), 7, KNOWN, (1, 1), 5)


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
        (EXAMPLE._replace(order=ORDER), WORDS, "it is not asked for"),
        (EXAMPLE._replace(imports=Imports()), WORDS, "it has not reported its imports"),
        (EXAMPLE._replace(imports=KNOWN._replace(complete=False)), WORDS, "it has not reported its imports"),
        (EXAMPLE._replace(pid=6), WORDS, "its command is not Python's own"),  # as behind a shell
        (EXAMPLE, ("sh", "train.sh"), "its command is not Python's own"),
        (EXAMPLE, (), "its command is not Python's own"),
    ],
)
def test_a_template_is_made_like_a_process_that_is_python_itself(
    example: Example, words: tuple[str, ...], reason: str
) -> None:
    assert may_be_template(example, words) == (not reason, reason)


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
