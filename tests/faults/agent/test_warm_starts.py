"""Processes that an agent forks from a template start, run and end like others. Without a template, starts are
normal."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hvd_elastic_ext.worker.hook
from hvd_elastic_ext.io import process_tree
from hvd_elastic_ext.worker.process import link
from hvd_elastic_ext.worker.process.template import NAME
from tests.faults.agent.launching import Launcher, Session, agent_process, start_order
from tests.support import marks
from tests.support.processes import RunningProcess
from tests.support.waiting import wait_until

TRAINEE = Path(__file__).with_name("warm_trainee.py")
HOOK = Path(hvd_elastic_ext.worker.hook.__file__).parent
ROOT = HOOK.parents[2]
USUAL_ANSWER = """
from hvd_elastic_ext.agent.slots import warm_starts
warm_starts.CALM_S, warm_starts.LOOK_S, warm_starts.DUTY = 0.3, 0.1, 1.0
"""
PRESET = USUAL_ANSWER + "warm_starts.ANSWER_S = 30.0\n"  # on a busy machine, an answer may take longer than a second
PATIENT = PRESET + "warm_starts.MAX_TEMPLATE_ENDS = 1000\n"
STARTS_A_THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
OPENS_A_SOCKET = "import socket\nheld = socket.socket()\n"
STARTS_A_PROGRAM = "import subprocess\nheld = subprocess.Popen(['sleep', '3600'])\n"
SHARES_MEMORY = "import mmap\nheld = mmap.mmap(-1, 4096)\n"
EXITS = "import os\nif 'HVD_ELASTIC_LINK' not in os.environ: raise SystemExit('no link')\n"
NEEDS_HOROVOD = "import importlib.util\nthere = importlib.util.find_spec('horovod') is not None\n"


class Host:
    """An agent, and a slot in which the trainee runs again and again."""

    def __init__(self, agent: RunningProcess, session: Session, words: list[str]) -> None:
        self.agent = agent
        self.session = session
        self._words = words
        self.lives = 0

    def start(self, *, env: dict[str, str] | None = None, argv: list[str] | None = None) -> dict[str, Any]:
        """Start a process. Return its report of its start, and whether the agent calls it warm."""
        words = self._words if argv is None else argv
        self.lives += 1
        self.session.order(start_order(0, *words, link=True, env={"HVD_ELASTIC_PLAN": str(self.lives), **(env or {})}))
        started = self.session.wait_for("started", count=self.lives)
        wait_until(lambda: len(self.said()) == self.lives, what="the process's first line", show=self.shown)
        return {**self.said()[-1], "pid": started["pid"], "called_warm": started.get("warm", False)}

    def said(self) -> list[dict[str, Any]]:
        lines = self.session.written(0).decode().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def shown(self) -> str:
        return self.session.written(0, "stderr").decode()[-2000:]

    def end(self, **how: object) -> dict[str, Any]:
        self.session.order({"do": "tell", "to": {"0": self.lives}, "message": {"tell": "end", **how}})
        return self.session.wait_for("exited", count=self.lives)

    def kill(self) -> None:
        self.session.order({"do": "kill", "slot": 0})
        self.session.wait_for("ended", count=self.lives)

    def prepared(self, *, count: int = 1) -> dict[str, Any]:
        return self.session.wait_for("template", count=count, timeout=60)

    def templates(self) -> list[int]:
        found = process_tree.descendants(self.agent.pid)
        return [pid for pid in found if Path(f"/proc/{pid}/comm").read_text().strip() == NAME]


Hosts = Callable[..., Host]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of installed packages."""
    folder = tmp_path / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def host(launcher: Launcher, tmp_path: Path, packages: Path) -> Iterator[Hosts]:
    with contextlib.ExitStack() as stack:

        def made(*modules: str, preload: str = "auto", env: dict[str, str] | None = None, preset: str = PRESET) -> Host:
            own = {"PYTHONUSERBASE": str(tmp_path), "PYTHONPATH": os.pathsep.join(map(str, (HOOK, ROOT, packages)))}
            own |= {"HVD_ELASTIC_PRELOAD": preload, link.INTERVAL: "0.1"}
            env = {**os.environ, **own, **(env or {})}
            launcher.options = {"preload": preload == "auto"}
            agent = stack.enter_context(agent_process(launcher.line(env=env), tmp_path, preset=preset))
            return Host(agent, launcher.session(), [sys.executable, str(TRAINEE), *modules])

        yield made


def test_successors_are_forked_with_their_imports_done_see_what_a_fresh_process_sees_and_draw_other_numbers(
    host: Hosts,
) -> None:
    one = host("numpy", "email.mime.text")
    cold = one.start()
    assert not cold["called_warm"]
    assert not any(cold["warm"].values())
    memory = one.prepared()["memory"]
    assert memory["rss"] >= memory["anonymous"] > 0
    for life in ("2", "3"):
        one.kill()
        warm = one.start()
        assert warm["called_warm"]
        assert all(warm["warm"].values())
        assert warm["same"] == cold["same"]
        assert warm["plan"] == life
    drawn = one.said()
    assert len({said["random"] for said in drawn}) == len({said["numpy"] for said in drawn}) == 3


def test_a_forked_process_ends_as_a_fresh_one_does(host: Hosts) -> None:
    one = host("email.mime.text")
    one.start()
    one.prepared()
    for how, code in (({"how": "exit", "code": 3}, 3), ({"how": "raise"}, 1), ({"how": "interrupt"}, 130)):
        one.end(**how)
        before = one.session.written(0, "stderr")
        assert one.start()["called_warm"]
        assert one.end(**how)["code"] == code
        traceback = one.session.written(0, "stderr")[len(before) :].decode()
        assert "hvd_elastic_ext" not in traceback
        assert traceback.count("  File ") == (0 if how["how"] == "exit" else 2)
        one.start()


def test_a_forked_process_may_start_processes_by_multiprocessing(host: Hosts) -> None:
    one = host("email.mime.text")
    one.start()
    one.prepared()
    one.kill()
    for number, context in enumerate(("fork", "spawn", "forkserver"), 1):
        assert one.start()["called_warm"]
        assert one.end(how="pool", context=context)["code"] == 0
        assert one.session.written(0).count(b"the sum is 3\n") == number
        one.session.wait_for("ended", count=one.lives)


def test_after_a_stop_or_a_killed_supervisor_nothing_of_a_fork_remains_and_an_agent_takes_its_template_along(
    host: Hosts,
) -> None:
    one = host("email.mime.text")
    one.start()
    one.prepared()
    (template,) = one.templates()
    one.kill()
    warm = one.start()
    supervisor = warm["parent"]
    assert marks.parent(supervisor) == one.agent.pid
    one.session.order({"do": "stop", "slot": 0, "grace_s": 5})
    assert one.session.wait_for("exited", count=2)["code"] == 143
    one.session.wait_for("ended", count=2)
    assert [template] == process_tree.descendants(one.agent.pid)

    os.kill(one.start()["parent"], signal.SIGKILL)
    assert one.session.wait_for("exited", count=3)["code"] == 137
    one.session.wait_for("ended", count=3)
    assert [template] == process_tree.descendants(one.agent.pid)

    assert one.start()["called_warm"]
    one.session.order({"do": "finish"}, {"do": "stop", "slot": 0})
    assert one.agent.wait() == 143
    assert marks.start_time(template) is None


def test_after_a_killed_agent_neither_its_template_nor_forked_processes_remain(host: Hosts) -> None:
    one = host("email.mime.text")
    one.start()
    one.prepared()
    one.kill()
    one.start()
    left = process_tree.descendants(one.agent.pid)
    assert len(left) == 3  # template, supervisor, training process
    os.kill(one.agent.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(marks.start_time, left)), what="the end of it all", timeout=15)


def test_a_killed_template_is_replaced_but_not_for_ever_and_meanwhile_processes_start_as_ever(host: Hosts) -> None:
    one = host("email.mime.text")
    one.start()
    one.prepared()
    os.kill(one.templates()[0], signal.SIGKILL)
    one.kill()
    assert not one.start()["called_warm"]
    one.prepared(count=2)
    one.kill()
    assert one.start()["called_warm"]
    for count in (2, 3):
        assert one.prepared(count=count)["ready"]
        os.kill(one.templates()[0], signal.SIGKILL)
    assert one.prepared(count=4)["reason"] == "it has ended"
    one.kill()
    assert not one.start()["called_warm"]


def test_a_template_that_does_not_answer_delays_a_start_by_a_second_and_starts_nothing_later(host: Hosts) -> None:
    one = host("email.mime.text", preset=USUAL_ANSWER)
    one.start()
    one.prepared()
    (template,) = one.templates()
    os.kill(template, signal.SIGSTOP)
    one.kill()
    assert not one.start()["called_warm"]
    wait_until(lambda: marks.start_time(template) is None, what="the end of the template")
    assert len(process_tree.descendants(one.agent.pid)) == 2


@pytest.mark.soak
def test_a_template_that_is_killed_while_it_forks_prevents_no_start_and_nothing_of_it_remains(host: Hosts) -> None:
    one, chance = host("email.mime.text", preset=PATIENT), random.Random(4)
    one.start()
    warm = 0
    for round_ in range(1, 41):
        one.prepared(count=round_)
        (template,) = one.templates()
        one.kill()
        killer = threading.Timer(chance.uniform(0, 0.03), os.kill, (template, signal.SIGKILL))
        if round_ % 4:
            killer.start()
        else:  # this makes sure that some are killed before the request, also on a machine that forks fast
            os.kill(template, signal.SIGKILL)
        said = one.start()
        if round_ % 4:
            killer.join()
        warm += said["called_warm"]
        wait_until(lambda known=template: marks.start_time(known) is None, what="the end of the template")
        others = [pid for pid in process_tree.descendants(one.agent.pid) if pid not in (said["pid"], said["parent"])]
        assert [pid for pid in others if pid not in one.templates()] == []
    assert 0 < warm < 40, "the kill came at all moments"


def test_another_command_or_environment_starts_as_ever_and_gets_a_template_of_its_own(host: Hosts) -> None:
    one = host("email.mime.text")
    one.start()
    one.prepared()
    one.kill()
    assert not one.start(env={"OMP_NUM_THREADS": "1"})["called_warm"]
    one.prepared(count=2)
    one.kill()
    assert one.start(env={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "3"})["called_warm"]


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (STARTS_A_THREAD, "an import leaves threads running (1)"),
        (OPENS_A_SOCKET, "an import leaves socket:"),
        (STARTS_A_PROGRAM, "an import leaves a process running"),
        (SHARES_MEMORY, "an import maps memory that forks share"),
    ],
)
def test_a_module_that_forks_cannot_share_turns_warm_starts_off_with_its_reason(
    host: Hosts, packages: Path, module: str, reason: str
) -> None:
    (packages / "of_the_test.py").write_text(module)
    one = host("of_the_test")
    supervisor = one.start()["parent"]
    assert one.prepared()["reason"].startswith(reason)
    others = lambda: process_tree.descendants(one.agent.pid, but=[supervisor])  # noqa: E731
    wait_until(lambda: not others(), what="the end of the template, and of what its imports started", show=others)
    one.kill()
    assert not one.start()["called_warm"]


@pytest.mark.parametrize("code", [EXITS, NEEDS_HOROVOD])
def test_a_package_that_cannot_be_imported_ahead_is_left_to_each_process(
    host: Hosts, packages: Path, code: str
) -> None:
    (packages / "of_the_test.py").write_text(code)
    one = host("email.mime.text", "of_the_test", "wave")
    one.start()
    assert one.prepared()["ready"]
    one.kill()
    warm = one.start()
    assert warm["called_warm"]
    assert warm["warm"] == {"email.mime.text": True, "of_the_test": False, "wave": True}


def test_a_script_that_changes_its_environment_before_its_imports_starts_as_ever(host: Hosts) -> None:
    one = host("email.mime.text", env={"SETS": "MKL_THREADING_LAYER"})
    one.start()
    assert one.prepared()["reason"] == "the script sets MKL_THREADING_LAYER before hvd.init()"


def test_a_script_behind_a_shell_starts_as_ever_and_the_reason_is_told(host: Hosts) -> None:
    one = host()
    one.start(argv=["sh", "-c", f"{sys.executable} {TRAINEE}; exit $?"])
    assert one.prepared()["reason"] == "its command is not Python's own"


def test_there_is_no_template_unless_it_is_asked_for(host: Hosts) -> None:
    one = host("email.mime.text", preload="off")
    one.start()
    one.session.wait_for("beats", count=15)
    assert one.templates() == []
    one.kill()
    assert not one.start()["called_warm"]
