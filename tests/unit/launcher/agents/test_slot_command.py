"""What an agent starts in a slot of each engine."""

from __future__ import annotations

from hvd_elastic_ext.launcher.agents.environment import mark_of, slot_command, slot_env


def test_marks_tell_keys_apart_and_nothing_of_them() -> None:
    assert mark_of(b"a" * 32) != mark_of(b"b" * 32)
    assert len(mark_of(b"a" * 32)) == 32


def test_horovods_slots_run_the_command_itself_and_others_what_stands_by() -> None:
    assert slot_command("horovod", ["python", "train.py"]) == ("python", "train.py")
    assert slot_env("horovod", job="job", mark="0123") == {}
    assert slot_command("torchrun", ["python", "train.py"])[-2:] == ("python", "train.py")
    assert set(slot_env("mpirun", job="job", mark="0123").values()) == {"mpirun", "job", "0123"}
