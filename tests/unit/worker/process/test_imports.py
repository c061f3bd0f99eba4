"""What a process tells of its imports, and why a template may not be forked."""

from __future__ import annotations

import importlib.machinery
import json
import subprocess
import sys
import types

import pytest

from hvd_elastic_ext.agent.slots import warm_starts
from hvd_elastic_ext.worker.process import template
from hvd_elastic_ext.worker.process.imports import (
    Imports,
    Report,
    at_start,
    changes,
    imports_of,
    installed,
    messages_of,
)
from hvd_elastic_ext.worker.process.link import LONGEST_SENT
from hvd_elastic_ext.worker.process.template import set_by_script

FOLDERS = ["/py/lib", "/py/site"]


def module(name: str, origin: str | None, *, known_as: str | None = None) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(known_as or name, None, origin=origin)
    return made


def test_installed_modules_are_told_in_the_order_of_their_import_and_the_scripts_own_by_their_first_name() -> None:
    modules = {
        "sys": module("sys", "built-in"),
        "os": module("os", "frozen"),
        "__main__": module("__main__", "/job/train.py"),
        "email": module("email", "/py/lib/email/__init__.py"),
        "torch": module("torch", "/py/site/torch/__init__.py"),
        "torch.nn": module("torch.nn", "/py/site/torch/nn/__init__.py"),
        "alias": module("alias", "/py/site/torch/nn/__init__.py", known_as="torch.nn"),
        "spaces": module("spaces", None),
        "helpers": module("helpers", "/job/helpers/__init__.py"),
        "helpers.data": module("helpers.data", "/job/helpers/data.py"),
        "mixed": module("mixed", "/py/site/mixed/__init__.py"),
        "mixed.own": module("mixed.own", "/job/mixed/own.py"),
        "beside": module("beside", "/py/site-of-mine/beside.py"),
        "horovod.torch": module("horovod.torch", "/py/site/horovod/torch/__init__.py"),
        "hvd_elastic_ext.io": module("hvd_elastic_ext.io", "/py/site/hvd_elastic_ext/io/__init__.py"),
        "gone": None,
    }
    found = imports_of(modules, FOLDERS)
    assert found == (["email", "torch", "torch.nn"], ["helpers", "mixed", "beside"])


def test_pytest_and_the_standard_library_are_found_where_packages_are_installed() -> None:
    found = imports_of({name: sys.modules[name] for name in ("json", "pytest")}, installed())
    assert found == (["json", "pytest"], [])


def test_every_message_fits_into_a_link_and_together_they_tell_all() -> None:
    names = [f"a_package_of_many.with_long_names.module_{number}" for number in range(2345)]
    told = list(messages_of(Imports(names, ["own"]), {"A": "1"}, 7))
    assert [name for each in told for name in each["modules"]] == names
    assert [each.get("complete", False) for each in told] == [False] * 4 + [True]
    assert (told[-1]["own"], told[-1]["env"]) == (["own"], {"A": "1"})
    assert all(len(json.dumps({"say": "imported", **each})) < LONGEST_SENT for each in told)
    assert list(messages_of(Imports([], []), {}, 7)) == [
        {"pid": 7, "modules": [], "own": [], "env": {}, "complete": True}
    ]


def test_changes_of_an_environment_leave_out_what_differs_between_processes() -> None:
    before = {"A": "1", "B": "2", "HVD_ELASTIC_LINK": "7", "CUDA_VISIBLE_DEVICES": "0"}
    assert changes(before, {"A": "1", "C": "3"}) == {"B": None, "C": "3"}


@pytest.mark.parametrize(
    ("there", "here", "name"),
    [
        ({}, {}, None),
        ({"A": "1"}, {"A": "1", "B": "2"}, None),
        ({"A": "1"}, {}, "A"),
        ({"A": "1"}, {"A": "2"}, "A"),
        ({"A": None}, {}, "A"),
        ({"A": None}, {"A": None}, None),
    ],
)
def test_what_the_script_sets_before_its_imports_is_told_from_what_they_set(
    there: dict[str, str | None], here: dict[str, str | None], name: str | None
) -> None:
    assert set_by_script(there, here) == (name and f"the script sets {name} before hvd.init()")


class Linked:
    """A link that keeps what it is told."""

    connected = True

    def __init__(self) -> None:
        self.said: list[dict[str, object]] = []

    def send(self, what: str, **fields: object) -> None:
        self.said.append({"say": what, **fields})


class Hook:
    hvd_elastic_hook = True

    def find_spec(self, *_: object) -> None:
        return None


@pytest.mark.parametrize(("preload", "hooked", "says"), [("auto", True, 1), ("off", True, 0), ("auto", False, 0)])
def test_a_process_tells_once_what_it_has_imported_if_that_is_asked_for_and_the_hook_is_there(
    monkeypatch: pytest.MonkeyPatch, preload: str, hooked: bool, says: int
) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, *([Hook()] if hooked else [])])
    link = Linked()
    report = Report(link, {**at_start(), "HVD_ELASTIC_PRELOAD": preload, "A": "1"})
    report.at_first_step()  # in a world that was entered without hvd.init()
    report.at_init()
    report.at_first_step()
    report.at_first_step()
    assert [each["env"]["A"] for each in link.said if each.get("complete")] == ["1"] * says


def in_a_process(*lines: str) -> str:
    """What a fresh interpreter prints."""
    code = "\n".join(["from hvd_elastic_ext.worker.process.template import prepare, why_unfit", "import sys", *lines])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_no_template_imports_a_module_that_needs_one_of_the_scripts_own() -> None:
    needs = "needs codeop, which each process imports by itself"  # code imports codeop
    assert in_a_process("print(*prepare(['email.mime.text', 'code.x'], ['codeop']), sep='|')") == (
        f"code.x cannot be imported ahead of the script (it {needs})|code"
    )


def test_a_guarded_import_does_not_take_a_module_that_is_left_out_for_absent() -> None:
    forget = "sys.modules.pop('heapq', 0), sys.modules.pop('_heapq', 0)"  # heapq does without _heapq
    assert in_a_process(forget, "print(prepare(['heapq'], ['_heapq']).without)") == "heapq"


def test_a_module_that_cannot_be_imported_makes_a_template_unfit() -> None:
    assert in_a_process("print(prepare(['nowhere.at_all'], []).reason)") == (
        "nowhere.at_all cannot be imported ahead of the script (ModuleNotFoundError: No module named 'nowhere')"
    )


def test_numpys_idle_threads_do_not_make_a_template_unfit() -> None:
    use = "print(float((numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum()))"
    assert in_a_process("print(prepare(['numpy'], []))", "import numpy", use).split() == ["None", "27000000.0"]


def test_threads_make_a_template_unfit() -> None:
    start = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    assert in_a_process(start, "print(why_unfit(list()))") == "an import leaves threads running (1)"


def test_a_template_imports_with_the_share_of_a_processor_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    used, slept = [0.0], list[float]()
    monkeypatch.setattr(template.time, "process_time", lambda: used[0])
    monkeypatch.setattr(template.time, "sleep", slept.append)
    pacer = template._Pacer((), warm_starts.DUTY)
    for _ in range(3):
        used[0] += 0.05
        pacer.find_spec("json")
    assert 3 * 0.05 / (3 * 0.05 + sum(slept)) == pytest.approx(1 / 5)
