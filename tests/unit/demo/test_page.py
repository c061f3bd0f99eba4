"""The page of the demo's job: its address is printed once, and lies nowhere."""

from __future__ import annotations

import io
import os
import re
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.demo import page
from hvd_elastic_ext.demo.job import Folder
from tests.support.journals import JournalMaker


def job(folder: Folder) -> None:
    journal = JournalMaker().add("started", run="r", job="demo").resized("start", 2, hosts={"a": 2}, added=["a"])
    journal.steps(20).add("finished", code=0, reason="training is done").write(folder.journal)


def answer(address: str, token: str) -> str:
    asked = urllib.request.Request(f"{address}api/jobs", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=60) as got:
        return str(got.read().decode())


def test_the_address_that_is_printed_opens_the_page_of_the_job_until_the_demo_ends(tmp_path: Path) -> None:
    for name in ("starlette", "bokeh"):
        pytest.importorskip(name, reason="the page needs it; pip install starlette uvicorn bokeh")
    said, others = io.StringIO(), psutil.Process().children()  # of earlier tests in this process, such as trackers
    with Folder(tmp_path) as folder:
        job(folder)
        with page.served(folder, said, os.environ):
            found = re.fullmatch(r"Page of the job: (http://127\.0\.0\.1:\d+/)#(\S+)\n", said.getvalue())
            assert found is not None
            address, token = found.groups()
            assert folder.state.name in answer(address, token)
            with pytest.raises(urllib.error.HTTPError, match="401"):
                answer(address, "wrong")
            children = psutil.Process().children(recursive=True)
            assert not [child for child in children if token in " ".join(child.cmdline())]
        assert psutil.Process().children() == others
        assert token not in folder.log.read_text()


def test_without_what_serves_a_page_one_line_says_so_and_the_demo_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "uvicorn" else name)
    said, others = io.StringIO(), psutil.Process().children()
    with Folder(tmp_path) as folder, page.served(folder, said, os.environ):
        assert said.getvalue() == "No live page of the job: pip install uvicorn\n"
        assert psutil.Process().children() == others


def test_the_page_is_written_into_a_file(tmp_path: Path) -> None:
    with Folder(tmp_path) as folder:
        job(folder)
        page.export(folder)
        assert "Training is done" in folder.page.read_text()


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with Folder(tmp_path) as folder:
        folder.journal.write_text("")
        with pytest.raises(Permanent, match=r"^the page of the job was not written: .*holds no journal line") as error:
            page.export(folder)
        assert "\n" not in str(error.value)


def test_output_and_the_page_of_an_earlier_demo_are_removed(tmp_path: Path) -> None:
    with Folder(tmp_path) as folder:
        folder.page.touch()
        (folder.output / "rank.0").mkdir(parents=True)
    with Folder(tmp_path) as folder:
        assert not folder.page.exists()
        assert not folder.output.exists()
