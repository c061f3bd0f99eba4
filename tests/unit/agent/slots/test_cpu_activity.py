"""Processes that use the processor."""

from __future__ import annotations

import os
import time

import pytest

from hvd_elastic_ext.agent.slots.worker_link import CpuActivity, used_s


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
