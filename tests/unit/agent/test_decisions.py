"""What the agent decides and keeps count of without looking at anything but what it is given."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hvd_elastic_ext.agent.launcher import host_facts
from hvd_elastic_ext.agent.launcher.backlog import MAX_EVENT_BYTES, Backlog
from hvd_elastic_ext.agent.slots.worker_status import MESSAGES_A_SECOND, RateLimit, WorkerStatus
from hvd_elastic_ext.agent.system.cpu_activity import CpuActivity, used_s
from hvd_elastic_ext.agent.system.oom import OutOfMemory
from hvd_elastic_ext.agent.system.resolver import family, resolve
from hvd_elastic_ext.agent.system.streams import FULL

# --- what a process said -----------------------------------------------------------------------------


def test_where_a_process_stands_follows_from_what_it_said_and_was_told() -> None:
    worker = WorkerStatus(10.0)
    nothing = {
        "parked": False,
        "generation": None,
        "agreed": None,
        "loops": False,
        "done": False,
        "warned": False,
        "beat": None,
    }
    assert worker.status() == nothing
    worker.heard(11.0, {"say": "beat", "step": 4})
    worker.heard(12.0, {"say": "parked"})
    assert (worker.age(12.5), worker.parked) == (1.5, True)
    worker.told({"tell": "go", "generation": 3})
    assert worker.status() == {**nothing, "beat": {"step": 4}}
    worker.told({"tell": "world", "generation": 3})
    worker.heard(13.0, {"say": "entered", "generation": True})  # no number
    worker.heard(14.0, {"say": "synced"})
    worker.heard(15.0, {"say": "done"})
    worker.heard(15.5, {"say": "warned", "leaving": True})
    assert worker.status() == {
        "parked": False, "generation": 3, "agreed": 3, "loops": True, "done": True, "warned": True, "beat": {"step": 4},
    }  # fmt: skip
    worker.heard(15.6, {"say": "warned", "leaving": False})
    assert not worker.warned
    worker.heard(16.0, {"say": "looping"})  # once more
    assert not worker.done


def test_a_process_seen_at_work_is_as_good_as_one_that_speaks() -> None:
    worker = WorkerStatus(10.0)
    worker.heard(11.0, {"say": "beat", "step": 4})
    worker.seen_working(13.0)
    assert (worker.age(13.5), worker.heartbeat) == (0.5, {"step": 4})


def test_who_uses_the_processor_is_at_work_and_who_does_not_or_is_another_or_gone_is_not() -> None:
    looks = [
        (1.0, 7, 5.0),
        (2.0, 7, 5.06),
        (3.0, 7, 5.07),
        (3.0, 7, 9.0),
        (4.0, 8, 99.0),
        (5.0, 8, None),
        (6.0, 8, 1e3),
    ]
    at_work = CpuActivity()
    assert [at_work.look(*look) for look in looks] == [False, True, False, False, False, False, False]


def test_the_processor_time_of_a_processs_first_thread_is_what_the_kernel_says() -> None:
    before = time.thread_time()
    while time.thread_time() - before < 0.05:
        pass
    assert used_s(os.getpid()) == pytest.approx(time.thread_time(), abs=0.05)
    assert used_s(1 << 30) is None


def test_an_allowance_lets_through_bursts_and_then_its_rate_and_counts_the_rest() -> None:
    limit = RateLimit(0.0)
    assert sum(limit.allows(0.0) for _ in range(1000)) == 2 * MESSAGES_A_SECOND
    assert limit.dropped() == 1000 - 2 * MESSAGES_A_SECOND
    assert limit.dropped() == 0
    assert sum(limit.allows(0.5) for _ in range(1000)) == MESSAGES_A_SECOND / 2
    assert sum(limit.allows(1000.0) for _ in range(1000)) == 2 * MESSAGES_A_SECOND


# --- news that wait ----------------------------------------------------------------------------------


def output(size: int) -> dict[str, object]:
    return {"event": "output", "text": "x" * size}


def test_with_a_launcher_nothing_is_dropped_and_too_much_is_said() -> None:
    backlog = Backlog()
    backlog.put(output(FULL), connected=True)
    assert not backlog.too_much_output
    backlog.put(output(1), connected=True)
    assert backlog.too_much_output
    first = backlog.pop()
    assert not backlog.too_much_output
    backlog.put_back(first)
    assert backlog.too_much_output
    assert backlog.dropped() == {}


def test_output_counts_by_its_bytes() -> None:
    backlog = Backlog()
    backlog.put({"event": "output", "text": "€" * (FULL // 3 + 1)}, connected=True)
    assert backlog.too_much_output


def test_even_news_do_not_fill_all_memory() -> None:
    backlog = Backlog()
    for _ in range(10):
        backlog.put({"event": "said", "message": "x" * (MAX_EVENT_BYTES // 4)}, connected=True)
    assert backlog.dropped() == {"output": 0, "news": 7}


# --- facts -------------------------------------------------------------------------------------------


def test_versions_are_read_from_what_installers_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name in (
        (first, "torch-2.13.0+cpu.dist-info"),
        (first, "Hvd.Elastic-ext-0.1.0.dist-info"),
        (first, "hvd_elastic_ext-0.1.0.dist-info"),
        (second, "torch-1.0.dist-info"),  # hidden by the first
        (second, "horovod-0.28.1-py3.11.egg-info"),
        (second, "broken.dist-info"),
    ):
        (folder / name).mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(first), str(tmp_path / "none"), str(second)])
    versions = {"torch": "2.13.0+cpu", "hvd-elastic-ext": "0.1.0", "horovod": "0.28.1", "numpy": None}
    assert host_facts.versions() == versions


def test_a_connection_leaves_through_the_interface_that_has_its_address() -> None:
    known = {"lo": "127.0.0.1", "eth0": "10.0.0.2"}
    assert host_facts.through("10.0.0.2", known) == "eth0"
    assert host_facts.through("127.0.0.5", known) == "lo"
    assert host_facts.through("10.0.0.3", known) is None


def test_names_are_told_from_addresses_and_what_does_not_resolve_says_so() -> None:
    assert family("127.0.0.1") is not None
    assert family("::1") is not None
    assert family("localhost") is None
    assert "127.0.0.1" in resolve("localhost").addresses
    addresses, problem = resolve("no-such-host.invalid")
    assert addresses == ()
    assert problem is not None
    assert problem.startswith("no-such-host.invalid does not resolve: ")


# --- out of memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "counter"),
    [
        ("0::/job/pod\n", "cgroup/job/pod/memory.events"),
        ("0::/../elsewhere\n", "cgroup/memory.events"),
        ("3:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/\n", "cgroup/memory/docker/1/memory.oom_control"),
        ("", "proc/vmstat"),
    ],
)
def test_the_kernels_counter_is_found_wherever_it_is(tmp_path: Path, own: str, counter: str) -> None:
    for name, text in (("proc/self/cgroup", own), (counter, "oom_kill_disable 0\noom_kill 3\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    memory = OutOfMemory(str(tmp_path / "proc"), str(tmp_path / "cgroup"))
    before = memory.count()
    assert not memory.explains(before)
    (tmp_path / counter).write_text("oom_kill_disable 0\noom_kill 4\n")
    assert memory.explains(before)
    assert not memory.explains(before)  # of two that have ended since it explains one
    assert not memory.explains(memory.count())


def test_where_there_is_no_counter_memory_never_runs_out(tmp_path: Path) -> None:
    assert not OutOfMemory(str(tmp_path), str(tmp_path)).explains(0)
