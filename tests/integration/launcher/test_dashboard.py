"""``run --dashboard``: the page of a job that runs, from a process beside its launcher."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.launcher.conftest import COUNTER, Launched

pytestmark = pytest.mark.timeout(300)


class Page:
    """The page of a job, as its address in the launcher's line leads to it."""

    def __init__(self, launched: Launched) -> None:
        launched.wait_for("the address", lambda: "dashboard: http" in launched.process.output)
        [(self.address, token)] = re.findall(r"dashboard: http://(\S+?)/#(\S+)", launched.process.output)
        self._headers = {"Authorization": f"Bearer {token}"}

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://{self.address}{path}", headers=self._headers)
        ) as got:
            return json.load(got)

    def act(self, **request: Any) -> str:
        headers = {**self._headers, "Content-Type": "application/json"}
        url = f"http://{self.address}/api/act"
        asked = urllib.request.Request(url, json.dumps(request).encode(), headers, method="POST")
        with urllib.request.urlopen(asked) as got:
            return str(json.load(got)["said"])

    def first(self, name: str, fits: Callable[[Any], object]) -> Any:
        """The first part of this name that fits."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", "/api/live", headers=self._headers)
            event = ""
            with connection.getresponse() as answer:
                for line in answer:
                    if line.startswith(b"data: ") and event == name and fits(found := json.loads(line[6:])):
                        return found
                    event = line[7:].decode().strip() if line.startswith(b"event: ") else ""
        raise AssertionError(f"no such {name}")


def test_the_page_shows_the_job_blocks_a_host_through_its_launcher_and_ends_with_it(launched: Launched) -> None:
    launched.set_hosts("localhost:1", "127.0.0.1:1")
    sizes = ("-np", "2", "--min-np", "1", "--rsh", "local", "--dashboard", "0")
    with launched.run(*sizes, sys.executable, COUNTER, str(10**6)) as process:
        page = Page(launched)
        launched.wait_for_steps(2, timeout=200)
        told = page.first("now", lambda now: now["launcher"] and now["hosts"] == 2 and now["step"])
        assert told["text"].startswith("2 of 2 hosts: world ")
        hosts = page.first("hosts", lambda hosts: all(host["ranks"] for host in hosts))
        assert {host["name"] for host in hosts} == {"localhost", "127.0.0.1"}
        assert page.get("/api/logs")["folder"].endswith("/output")
        assert "127.0.0.1 is blocked" in page.act(do="block", host="127.0.0.1", reason="a test")
        launched.wait_for("its journal line", lambda: launched.events("blocked"))
        assert launched.events("blocked")[0].get("reason") == "by hand: a test"
        launched.wait_for("a world without it", lambda: launched.events("resized")[-1].get("size") == 1)
        assert "127.0.0.1 is cleared" in page.act(do="clear", host="127.0.0.1")
        process.send_signal(signal.SIGINT)
        process.wait(60)
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            page.get("/api/jobs")


def test_a_killed_launcher_takes_the_page_with_it(launched: Launched) -> None:
    launched.set_hosts()
    with launched.run("-np", "1", "--rsh", "local", "--dashboard", "0", sys.executable, COUNTER, "5") as process:
        page = Page(launched)
        os.kill(process.pid, signal.SIGKILL)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                page.get("/api/jobs")
            except (urllib.error.URLError, ConnectionError):
                return
            time.sleep(0.1)
        raise AssertionError("the page is still served")
