"""What the user's own configuration of ssh says of hosts' keys: ``ssh -G``, which connects to nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from hvd_elastic_ext.launcher.child import Child
from hvd_elastic_ext.launcher.ssh import HostKeys, Ssh, read_host_keys

ANSWER_S: Final = 5.0
"""It takes milliseconds, unless the configuration has names looked up or programs run."""
AT_ONCE: Final = 8


async def host_keys(ssh: Ssh, host: str) -> HostKeys:
    """Ask for one host. Where there is no answer, ssh's own defaults are left to hold: who is not known is refused."""
    lines: list[str] = []
    try:
        child = Child(ssh.question(host), b"", on_line=lambda stream, text: lines.append(text * (stream == "stdout")))
    except OSError:
        return HostKeys()
    try:
        await asyncio.wait_for(asyncio.shield(child.code), ANSWER_S)
    except asyncio.TimeoutError:
        return HostKeys()
    finally:
        child.kill()
        child.close()
    return read_host_keys("\n".join(lines))


async def all_host_keys(ssh: Ssh, hosts: Iterable[str]) -> list[HostKeys]:
    """Ask for each of ``hosts``, a few at a time."""
    room = asyncio.Semaphore(AT_ONCE)

    async def ask(host: str) -> HostKeys:
        async with room:
            return await host_keys(ssh, host)

    return list(await asyncio.gather(*map(ask, hosts)))
