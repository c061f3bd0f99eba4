"""``hvd-elastic events`` as users see it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_elastic_ext.cli import main as hvd_elastic
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.report.command import main
from hvd_elastic_ext.report.job_report import build_report
from hvd_elastic_ext.report.picture import draw, label_of
from hvd_elastic_ext.report.table import show

from .conftest import JournalMaker

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def path(job: JournalMaker, tmp_path: Path) -> Path:
    return job.write(tmp_path / "journal.jsonl")


def events(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hvd_elastic_ext.cli", "events", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_job_that_is_not_here_may_be_on_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"there is no job digits .*; for a job on a cluster give -n NAMESPACE$"):
        main(["digits"])
    with pytest.raises(UsageError, match=r"no job has a journal in .*its journal$"):
        main([])


def test_a_pipe_gets_plain_text(path: Path) -> None:
    done = events(path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    for word in ("worker failed", "cooldown over", "2 → 3", "0.11 s", "exit code 0"):
        assert word in done.stdout


def test_a_pipe_that_closes_early_is_no_traceback(path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m hvd_elastic_ext.cli events {path} --json | head -c 10",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr


def test_json_gives_rows_and_series(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["cause"] for row in told["rows"] if row["event"] == "resized"][2] == "worker failed"
    assert told["world"][1] == {"at": 0.5, "size": 2}
    assert told["code"] == 0
    assert told["throughput"][0].keys() == {"at", "width", "steps_per_s", "samples_per_s"}


def test_a_job_is_named_with_an_option_as_in_other_commands(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(path.parent)
    folder = path.parent / ".hvd-elastic" / "kept"
    folder.mkdir(parents=True)
    path.rename(folder / path.name)
    assert main(["--job", "kept"]) == 0
    assert "exit code 0" in capsys.readouterr().out


def test_an_encoding_without_arrows_is_not_an_error(job: JournalMaker) -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="latin-1", errors="replace")
    show(build_report(job.records), stream)
    stream.flush()
    assert b"2 ? 3" in written.getvalue()


@pytest.mark.parametrize("kind", ["png", "svg", "html"])
def test_a_picture_is_drawn_in_every_form(path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = path.with_suffix(f".{kind}")
    assert main([str(path), "--plot", str(target)]) == 0
    content = target.read_bytes()
    if kind == "png":
        assert content.startswith(PNG)
    else:
        drawn = content.decode()
        for label in ("+c", "b failed", "list refused", "world size", "time since the start (s)"):
            assert label in drawn
    assert str(target) in capsys.readouterr().err


def test_the_page_shows_text_of_a_journal_as_text_and_loads_nothing(journal: JournalMaker, tmp_path: Path) -> None:
    journal.add("started").add("refused", reason="<img src=x onerror=alert(1)> $x_$").steps(3)
    draw(build_report(journal.records), tmp_path / "p.html")
    page = (tmp_path / "p.html").read_text()
    assert not any(word in page for word in ("<img", "<script", "src=x>", 'src="'))


def test_a_job_without_steps_and_one_with_forty_events_can_be_drawn(tmp_path: Path) -> None:
    draw(build_report(JournalMaker().add("started").records), tmp_path / "none.png")
    many = JournalMaker().add("started")
    for i in range(40):
        many.resized("hosts added", 2 + i % 3, after=0.5, added=[f"127.0.0.{i}"]).steps(5)
    draw(build_report(many.records), tmp_path / "many.svg")
    # The labels stand in the key below, each with its number.
    assert "40   39.5 s   +127.0.0.39" in (tmp_path / "many.svg").read_text()


def test_a_job_that_chooses_its_size_is_drawn_with_its_curve(journal: JournalMaker, tmp_path: Path) -> None:
    drawn = tmp_path / "p.svg"
    journal.add("started").resized("start", 1, generation=1, hosts={"a": 1}).steps(9, generation=1)
    journal.resized("hosts added", 2, generation=2, hosts={"a": 1, "b": 1}).steps(9, generation=2)
    draw(build_report(journal.records), drawn)
    assert "each host as fast as the first" not in drawn.read_text(), "nobody has chosen a size"
    journal.add("scaled", hosts=1, before=2, leaving=["b"], reason="host 2 adds 3 %")
    draw(build_report(journal.records), drawn)
    assert all(words in drawn.read_text() for words in ("each host as fast as the first", "chosen", "2 → 1 host"))


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot be read"), (b"", "empty"), (b" \n\n", "empty"), (b"hello\nworld\n", "no journal line"),
     (b"\xff\xfe\x00\x01", "no journal line"), (b"[]\n7\n{}\n", "no journal line")],
)  # fmt: skip
def test_a_file_that_is_no_journal_is_one_line_and_exit_2(
    tmp_path: Path, content: bytes | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "j"
    if content is not None:
        target.write_bytes(content)
    assert hvd_elastic(["events", str(target)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(target) in said
    assert says in said


@pytest.mark.parametrize("target", ["p.pdf", "p", "missing/p.png"])
def test_a_picture_that_cannot_be_written_is_one_clear_error(path: Path, target: str) -> None:
    with pytest.raises(UsageError, match=target):
        main([str(path), "--plot", str(path.parent / target)])


def test_foreign_lines_are_counted_and_said(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text(f"noise\n{path.read_text()}more noise\n" + '{"t": 1, "mo')
    assert main([str(path)]) == 0
    assert "2 lines are not journal lines" in capsys.readouterr().err


def test_matplotlib_is_imported_only_for_a_picture(path: Path) -> None:
    code = (
        "import sys; from hvd_elastic_ext.report.command import main; "
        f"main([{str(path)!r}]); sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0


def test_the_label_of_a_change_names_the_hosts_that_came_and_went(job: JournalMaker) -> None:
    labels = [label_of(row) for row in build_report(job.records).rows]
    assert labels == ["start: 2", "+c", "b failed", "+b", "−c", "list refused", "end"]
