"""A real job tells a webhook how it ended, before it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import Launched
from tests.support.serving import serving

pytestmark = pytest.mark.timeout(200)


def test_a_job_that_fails_tells_why_and_its_address_stands_in_no_argument(launched: Launched, tmp_path: Path) -> None:
    launched.set_hosts("localhost:1")
    with serving(200) as server:
        address = tmp_path / "url"
        address.write_text(f"{server.url}/services/secret")
        options = ("-np", "1", "--rsh", "local", "--failure-budget", "0", "--notify", f"file:{address}")
        with launched.run(*options, sys.executable, "-c", "raise SystemExit(3)") as process:
            assert process.wait(100) != 0
    messages = [json.loads(body) for _, body in server.got]
    [told] = [each for each in messages if each["topic"] == "finished"]
    [ended] = launched.events("finished")
    assert told["text"].endswith(f"failed with {ended.get('code')}: {ended.get('reason')}")
    assert (told["job"], told["run"]) == (
        launched.events("started")[0].get("job"),
        launched.events("started")[0].get("run"),
    )
    assert "secret" not in launched.journal.read_text() + process.output
