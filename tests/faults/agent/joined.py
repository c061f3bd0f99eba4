"""Orders and places of agents that have joined a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.agent.launching import HOST, JOB, LINKED, start_order
from tests.support.processes import RunningProcess

WAIT = "import os, time\nprint('up', os.environ.get('HVD_ELASTIC_DOOR'), flush=True)\nwhile True: time.sleep(1)"
Begin = Callable[..., RunningProcess]


def python(slot: int, code: str, **more: object) -> dict[str, Any]:
    return start_order(slot, sys.executable, "-c", code, **more)


def linked(slot: int, code: str, **more: object) -> dict[str, Any]:
    return python(slot, LINKED + code, link=True, **more)


def socket_file(tmp_path: Path) -> Path:
    base = tmp_path / f"hvd-elastic-{os.geteuid()}"
    return next(base.glob(f"{JOB}.*/{HOST}.sock"), base / JOB / "none.sock")
