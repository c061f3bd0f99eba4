"""A job's page in one file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.dashboard import files
from hvd_elastic_ext.dashboard.command import main
from hvd_elastic_ext.dashboard.export import MAX_BYTES, export
from hvd_elastic_ext.dashboard.jobs import job_of
from tests.support.journals import JournalMaker


def data_of(path: Path) -> dict[str, object]:
    [found] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', path.read_text())
    return dict(json.loads(found))


def test_a_days_job_of_500_hosts_with_output_of_all_is_at_most_5_mb(tmp_path: Path) -> None:
    hosts = {f"host-{n}": 1 for n in range(500)}
    journal = JournalMaker().add("started", run="r", output=str(tmp_path / "output")).add("published", hosts=hosts)
    for world in range(300):
        journal.resized("worker failed", 500, after=3, hosts=hosts, failed={"host-7": 1}, generation=world)
        journal.steps(20, every=10.0, generation=world)
        for rank in range(4):
            reason = f"crashed: {'a long reason ' * 200}"
            journal.add("exited", host="host-7", slot=rank, rank=rank, code=1, cause="crashed", reason=reason)
    for rank in range(500):
        folder = tmp_path / "output" / f"rank.{rank}"
        folder.mkdir(parents=True)
        (folder / "stderr").write_text("<b>a line of output</b>\n" * 3000)
    path = tmp_path / "day.html"
    export(job_of(journal.write(tmp_path / "journal.jsonl")), path)
    assert 1_000_000 < path.stat().st_size <= MAX_BYTES
    assert "rank.3/stderr" in dict(dict(data_of(path)["logs"])["ends"])  # type: ignore[call-overload]


def test_output_of_many_faults_that_a_file_writes_longer_is_at_most_5_mb(tmp_path: Path) -> None:
    journal = JournalMaker().add("started", run="r", output=str(tmp_path / "output")).resized("start", 2)
    for rank in range(200):
        journal.add("exited", after=60, host="h", slot=0, rank=rank, code=1, cause="crashed", reason="crashed: so")
        (tmp_path / "output" / f"rank.{rank}").mkdir(parents=True)
        (tmp_path / "output" / f"rank.{rank}" / "stderr").write_text("<<<<<<<<<<<<<<<\n" * 2000)
    path = tmp_path / "day.html"
    export(job_of(journal.write(tmp_path / "journal.jsonl")), path)
    assert path.stat().st_size <= MAX_BYTES
    around = dict(dict(data_of(path)["logs"])["around"])  # type: ignore[call-overload]
    assert any(name.startswith("rank.199/") for name in around)


def test_it_ends_in_a_sentence_of_what_happened(tmp_path: Path) -> None:
    journal = JournalMaker().add("started", run="r").resized("start", 2).steps(5).add("finished", code=0, reason="done")
    said = export(job_of(journal.write(tmp_path / "journal.jsonl")), tmp_path / "x.html")
    assert said == "Training is done after 0.5 s at step 5: done. The world never changed."


def test_text_of_a_job_cannot_end_the_element_in_which_it_stands(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!--"
    journal = JournalMaker().add("started", run="r").add("finished", code=1, reason=evil)
    export(job_of(journal.write(tmp_path / "journal.jsonl")), tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    assert "alert(1)</script>" not in text
    assert text.count("<script") == text.count("</script>") == 5  # two of ours, two of Bokeh, and the data
    assert evil in json.dumps(data_of(tmp_path / "x.html")["parts"])


def test_another_run_than_the_newest_can_be_written(tmp_path: Path) -> None:
    journal = JournalMaker().add("started", run="a").add("finished", code=1, reason="first")
    path = journal.add("started", run="b").add("finished", code=0, reason="second").write(tmp_path / "journal.jsonl")
    assert "first" in export(job_of(path), tmp_path / "x.html", run=1)
    assert "second" in export(job_of(path), tmp_path / "x.html")
    with pytest.raises(UsageError, match=r"--run 3: .*journal\.jsonl has 2, counted from 1"):
        export(job_of(path), tmp_path / "x.html", run=3)
    with pytest.raises(UsageError, match="--run is for --export FILE"):
        main([str(path), "--run", "1"])


@pytest.mark.parametrize("content", ["", "no journal\n"])
def test_what_is_no_journal_gives_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match="holds no journal line"):
        export(job_of(path), tmp_path / "x.html")


def test_a_journal_or_a_file_that_cannot_be_used_gives_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        export(job_of(tmp_path / "none"), tmp_path / "x.html")
    path = JournalMaker().add("started", run="a").write(tmp_path / "journal.jsonl")
    with pytest.raises(UsageError, match="cannot be written"):
        export(job_of(path), tmp_path / "no-folder" / "x.html")


def test_the_library_is_in_the_file_as_it_is_installed(tmp_path: Path) -> None:
    journal = JournalMaker().add("started", run="a").write(tmp_path / "journal.jsonl")
    export(job_of(journal), tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    for name in files.LIBRARY:
        found = files.library(name)
        assert found is not None
        assert f'<script type="text/plain" class="library">{found.read_text()}</script>' in text
    assert "src=" not in "".join(re.findall(r"<script[^>]*>", text))


def test_without_the_library_a_file_is_written_that_lacks_the_charts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    path = JournalMaker().add("started", run="a").add("finished", code=1, reason="no").write(tmp_path / "journal.jsonl")
    assert main([str(path), "--export", str(tmp_path / "x.html")]) == 0
    wrote = f"hvd-elastic dashboard: wrote {tmp_path}/x.html, "
    assert capsys.readouterr().err == f"{wrote}without charts, which need bokeh: pip install bokeh\n"
    assert '<script type="text/plain" class="library"></script>' in (tmp_path / "x.html").read_text()


def test_reading_the_library_imports_nothing_of_it() -> None:
    code = (
        "import sys; from hvd_elastic_ext.dashboard import files; "
        "files.read('page.html'); files.single_file({}); print('bokeh' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_all_times_of_the_page_are_in_24_hours_as_its_axes_are() -> None:
    """Defect: "8:42:33 PM" beside an axis with 20:42:00."""
    scripts = {path.name: path.read_text() for path in (Path(files.__file__).parent / "page").glob("*.js")}
    assert "%H:%M:%S" in scripts["charts.js"]
    clocks = re.findall(r"toLocale(?:Time)?String\(([^)]*)\)", "".join(scripts.values()))
    assert [each for each in clocks if each not in ('"en"',) and not each.startswith('"en", {')] == ['"en-GB"']
