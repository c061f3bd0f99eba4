"""Starts a program over ssh on each given host, and prints its remarks and its end: one JSON object a line."""

import asyncio
import json
import sys
from pathlib import Path

from hvd_elastic_ext.launcher.agents.transports.ssh import Ssh
from hvd_elastic_ext.launcher.agents.transports.transports import SshTransport


def tell(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


async def start(transport: SshTransport, host: str) -> None:
    launch = await transport.start(host, b"the line\n", remark=lambda text: tell(host=host, remark=text))
    ended = await launch.wait()
    tell(host=host, code=ended.code, reached=ended.reached, message=ended.message)


async def main(agent: str, identity: str, *hosts: str) -> None:
    transport = SshTransport(Ssh(Path.cwd(), identity_file=identity, connect_timeout_s=2), python=agent)
    await asyncio.gather(*(start(transport, host) for host in hosts))


asyncio.run(main(*sys.argv[1:]))
