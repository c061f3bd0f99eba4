"""Code comes to a host before its agent starts, once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_elastic_ext.core.commands import HAS_CODE, RECEIVER_MODULE, WANTS_CODE, is_agent, module_command
from hvd_elastic_ext.io.code import receive
from hvd_elastic_ext.io.code.checksum import unpacked
from hvd_elastic_ext.io.code.files import Code, code_of
from hvd_elastic_ext.launcher.agents.transports.transports import code_line
from tests.support.waiting import wait_until


def code(folder: Path, there: Path, text: str = "x = 1\n") -> Code:
    """Of a folder, as it is to be at another place."""
    folder.mkdir()
    (folder / "train.py").write_text(text)
    found = code_of("--code", folder, sender="j")
    return found._replace(wanted=unpacked(found.wanted)._replace(folder=str(there)).packed())


def source(data: bytes, size: int) -> receive.Input:
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    return receive.Input(read, size)


def test_files_are_unpacked_and_not_a_byte_more_is_read(tmp_path: Path) -> None:
    there = tmp_path / "there"
    sent = code(tmp_path / "here", there)
    line = receive.read(code_line(sent, tmp_path))
    assert line.directory == str(tmp_path)
    assert not receive.has(line)
    way = source(sent.archive + b"{the agent's}\n", line.size)
    receive.take(line, way)
    assert receive.has(line)
    assert os.read(way._descriptor, 100) == b"{the agent's}\n"
    os.close(way._descriptor)


def test_what_is_cut_off_is_told(tmp_path: Path) -> None:
    sent = code(tmp_path / "here", tmp_path / "there")
    line = receive.read(code_line(sent, tmp_path))
    with pytest.raises(ValueError, match="the connection was lost while the code came"):
        receive.take(line, source(sent.archive[:-9], line.size))


def test_the_folder_that_is_sent_is_not_written_to_on_a_host_that_has_the_same_storage(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "train.py").write_text("x = 1\n")
    sent = code_of("--code", folder, sender="j")
    (folder / "train.py").write_text("an edit since the start\n")
    command = module_command(sys.executable, RECEIVER_MODULE)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(code_line(sent, tmp_path))
        process.stdin.flush()
        assert process.stdout.readline().decode().strip() == HAS_CODE
        process.communicate(b'{"do": "finish"}\n')
    assert (folder / "train.py").read_text() == "an edit since the start\n"


def test_whoever_sends_nothing_any_more_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = code(tmp_path / "here", tmp_path / "there")
    line = receive.read(code_line(sent, tmp_path))
    monkeypatch.setattr(receive, "QUIET_S", 0.1)
    read, write = os.pipe()
    with pytest.raises(ValueError, match="nothing came for"):
        receive.take(line, receive.Input(read, line.size))
    os.close(read)
    os.close(write)


def test_other_files_than_those_that_were_named_are_told(tmp_path: Path) -> None:
    sent, other = code(tmp_path / "a", tmp_path / "there"), code(tmp_path / "b", tmp_path / "there", "x = 2\n")
    line = receive.read(code_line(sent._replace(archive=other.archive), tmp_path))
    with pytest.raises(ValueError, match="what came has another checksum"):
        receive.take(line, source(other.archive, line.size))


@pytest.mark.parametrize(
    "line", [b"{}\n", b"no json\n", b'{"code": "?", "sha256": "", "size": 1, "mark": "", "directory": ""}\n']
)
def test_a_line_that_names_no_files_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        receive.read(line)


@pytest.mark.parametrize("there_already", [False, True])
def test_the_program_asks_for_what_it_has_not_and_becomes_the_agent(tmp_path: Path, there_already: bool) -> None:
    there = tmp_path / "there"
    sent = code(tmp_path / "here", there)
    if there_already:
        there.mkdir()
        (there / "train.py").write_text("x = 1\n")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        module_command(sys.executable, RECEIVER_MODULE), stdin=pipe, stdout=pipe, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(code_line(sent, there))
        said = process.stdout.readline().decode().strip()
        assert said == (HAS_CODE if there_already else WANTS_CODE)
        process.stdin.write(b"" if there_already else sent.archive)
        words = Path(f"/proc/{process.pid}/cmdline")
        wait_until(lambda: is_agent(words.read_text().split("\0")), what="the agent", timeout=60)
        assert Path(f"/proc/{process.pid}/cwd").resolve() == there
        process.stdin.write(b'{"do": "finish"}\n')
        assert process.wait(60) == 0
    assert (there / "train.py").read_text() == "x = 1\n"


def test_a_place_that_cannot_be_written_is_told_after_all_was_read(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("a file\n")
    sent = code(tmp_path / "here", tmp_path / "there")
    command = module_command(sys.executable, RECEIVER_MODULE)
    given = code_line(sent, tmp_path)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(given)
        process.stdin.flush()
        assert process.stdout.readline().decode().strip() == WANTS_CODE
        _, said = process.communicate(sent.archive)
    assert process.returncode == receive.FAILED
    assert said.decode() == f"the code of --code cannot be brought here: {tmp_path}/there: file exists\n"
