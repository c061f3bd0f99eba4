"""A parked process that is told of results of calls."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hvd_elastic_ext.worker.process.fence import Fence
from hvd_elastic_ext.worker.process.link import Link
from hvd_elastic_ext.worker.process.standby import CallOver, Standby


def test_results_that_do_not_end_its_call_park_it_again_and_the_right_ones_let_it_go_on() -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    answers = [False, True]
    with ours, ours.makefile("rb") as lines, ThreadPoolExecutor(1) as pool:
        process = Standby(Link(theirs), fence=Fence(), environ={})

        def parked() -> dict[str, Any]:
            return next(each for line in lines if (each := json.loads(line))["say"] == "parked")

        parks = pool.submit(process.park, call=2, is_over=lambda: answers.pop(0))
        try:
            for _ in range(2):
                assert parked()["call"] == 2
                process.link.on_message({"tell": "results"})
            with pytest.raises(CallOver):
                parks.result(timeout=20)
        finally:
            process.link.on_message({"tell": "update", "leave": True})
            process.link.close()
