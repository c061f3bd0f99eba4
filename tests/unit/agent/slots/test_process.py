"""Processes that the kernel ends for want of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext.agent.slots.process import OutOfMemory


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
