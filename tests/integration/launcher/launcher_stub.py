"""A launcher without a job: holds a state directory, and answers `hvd-elastic hosts` from a ledger of its own.

Arguments: the folder, then published hosts as host:slots.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.folder.state_folder import StateDir
from hvd_elastic_ext.launcher.folder.state_json import Saved
from hvd_elastic_ext.launcher.health import host_requests, ledger_json
from hvd_elastic_ext.launcher.job.admin_socket import AdminSocket


async def serve(folder: Path, hosts: list[Host]) -> None:
    held = StateDir(folder)
    saved = held.load() or Saved()
    now = time.monotonic()
    ledger = ledger_json.continued(saved.ledger, now, passed_s=time.time() - saved.at)

    def handle(request: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal ledger
        now = time.monotonic()
        ledger, answer = host_requests.answer(request, ledger, hosts=hosts, now=now)
        held.save(Saved(1, 1, at=time.time(), ledger=ledger_json.as_saved(ledger, now)))
        return answer

    await AdminSocket(held.socket, handle).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    folder, *hosts = sys.argv[1:]
    pairs = [text.split(":") for text in hosts]
    asyncio.run(serve(Path(folder), [Host(name, int(slots)) for name, slots in pairs]))


main()
