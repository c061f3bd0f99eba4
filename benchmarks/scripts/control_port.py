"""A launcher's control port without a job: it welcomes agents of the job's name.

    python -m benchmarks.scripts.control_port FILE

FILE gets the port, on loopback. The limit of open files is that of a launcher.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from hvd_elastic_ext.launcher.agents.capacity import raise_file_limit
from hvd_elastic_ext.launcher.agents.server import Control, ControlEvent

JOB: Final = "benchmark"
KEY: Final = bytes(32)
ADDRESS: Final = "127.0.0.1"


def take_note(_: ControlEvent) -> None:
    """Ignore the event."""


async def main(file: str) -> None:
    """Serve until this process ends."""
    raise_file_limit(1)
    port = await Control(JOB, KEY, incarnation=1, on_event=take_note).start(ADDRESS)
    fresh = Path(f"{file}.new")
    fresh.write_text(str(port))
    fresh.replace(file)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
