"""Asks the user's own ssh configuration about host keys, by ``ssh -G``, which connects to no host."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hvd_elastic_ext.io.threads.background_calls import BackgroundCalls
from hvd_elastic_ext.launcher.agents.transports.child_process import Child
from hvd_elastic_ext.launcher.agents.transports.ssh import HostKeys, Ssh, is_certified, read_host_keys

TIMEOUT_S: Final = 5.0
"""It takes milliseconds, unless the configuration has names looked up or programs run."""
MAX_CONCURRENT: Final = 8


async def host_keys(ssh: Ssh, host: str) -> HostKeys:
    """Ask for one host. Without an answer ssh's own defaults apply: an unknown host is refused."""
    lines: list[str] = []
    try:
        child = Child(
            ssh.query_command(host), b"", on_line=lambda stream, text: lines.append(text * (stream == "stdout"))
        )
    except OSError:
        return HostKeys()
    try:
        await asyncio.wait_for(asyncio.shield(child.code), TIMEOUT_S)
    except asyncio.TimeoutError:
        return HostKeys()
    finally:
        child.close()
        await child.killed()
    keys = read_host_keys("\n".join(lines))
    try:
        return await asyncio.wait_for(BackgroundCalls().call(lambda: with_authorities(keys)), TIMEOUT_S)
    except (OSError, asyncio.TimeoutError):
        return HostKeys()


def with_authorities(keys: HostKeys) -> HostKeys:
    """Add the authorities that sign host keys, read from its files. Blocks while files are slow."""
    certified = any(_has_authority(Path(name).expanduser(), keys) for name in (*keys.files, *keys.shared_files))
    return dataclasses.replace(keys, certified=certified)


def _has_authority(file: Path, keys: HostKeys) -> bool:
    try:
        if not file.is_file():  # for example a pipe, which never ends
            return False
        with file.open(encoding="utf-8", errors="replace") as lines:
            return is_certified(lines, keys.names)
    except (OSError, RuntimeError):  # ssh cannot read it, either
        return False


async def all_host_keys(ssh: Ssh, hosts: Iterable[str]) -> list[HostKeys]:
    """Ask for each of ``hosts``, a few at a time."""
    room = asyncio.Semaphore(MAX_CONCURRENT)

    async def ask(host: str) -> HostKeys:
        async with room:
            return await host_keys(ssh, host)

    return list(await asyncio.gather(*map(ask, hosts)))
