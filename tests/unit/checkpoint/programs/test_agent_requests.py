"""How storage is known for the same as another host's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hvd_elastic_ext.checkpoint.programs import agent_requests, checkpoint_requests

NO_ROOM = """
import resource, signal, sys
from hvd_elastic_ext.checkpoint.programs import agent_requests as helper

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
print(helper.answered({"do": "write", "place": sys.argv[1], "commit": [5, 1, 1, 2], "parts": 1, "shares": {}}))
"""


def write_nothing(place: Path) -> dict[str, Any]:
    request = {"do": "write", "place": str(place), "commit": [5, 1, 1, 2], "parts": 1}
    return agent_requests.answered({**request, "shares": {}})


def store_of(place: Path) -> object:
    return write_nothing(place).get("store")


def test_a_folder_is_the_same_storage_for_whoever_asks_and_another_one_is_not(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    assert store_of(tmp_path / "one") == store_of(tmp_path / "one")
    assert store_of(tmp_path / "one") != store_of(tmp_path / "other")


def test_storage_that_was_full_when_it_was_to_be_marked_is_marked_once_there_is_room(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", NO_ROOM, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert store_of(tmp_path)


def test_a_mark_whose_maker_was_killed_before_it_had_written_holds_up_one_attempt_only(tmp_path: Path) -> None:
    (tmp_path / checkpoint_requests.MARK).touch()
    answer = write_nothing(tmp_path)
    assert answer["for_good"] is False
    assert "was empty" in answer["failed"]
    assert store_of(tmp_path)
