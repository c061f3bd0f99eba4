"""All that the program says is in one file, and changes with it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.unit.words.snapshot import FILE, WRITE, differences, now
from tests.unit.words.texts import FOLDERS, as_file, texts, texts_of_tree


def test_all_that_the_program_says_is_as_it_was_agreed_to() -> None:
    agreed, said = FILE.read_text(encoding="utf-8"), now()
    if said != agreed:
        pytest.fail(f"what users read has changed. If it is meant: {WRITE}\n{differences(agreed, said)}", pytrace=False)


SAYS = {
    "a log line": ('log.warning("%s is gone; %d remain", host, left)', ["%s is gone; %d remain"]),
    "an error": (
        'raise UsageError(f"{path}: no such file; check --hosts-file")',
        ["{…}: no such file; check --hosts-file"],
    ),
    "an error of two lines": ('raise JobFailed("all is lost\\nsee above")', ["all is lost\nsee above"]),
    "the help of an option": (
        'parser.add_argument("--settle", metavar="TIME", help="how long a host waits")',
        ["how long a host waits"],
    ),
    "what a parser is for": ('parser = Parser(prog="x", description="Runs a job.")', ["Runs a job."]),
    "a print": ('print("nothing to do", file=sys.stderr)', ["nothing to do"]),
    "a template of the catalogue": (
        'KIND = EventKind("woke", "a job has hosts", line=_words("awake after {slept_s:.1f} s"))',
        ["a job has hosts", "awake after {slept_s:.1f} s"],
    ),
    "a reason that another module logs": ('def why():\n    return "no host is left"', ["no host is left"]),
    "a wait": ('w = Wait(f"for {few(h)}", until, then="; then it ends")', ["for {…}", "; then it ends"]),
    "a remedy in a table": ('R = ((r"No space", "Make room on {host}."),)', ["Make room on {host}."]),
    "texts in a row": ('x = ("one text " "of two parts")', ["one text of two parts"]),
    "either of two texts": (
        "x = f\"{n} host{'s' if n > 1 else ''} left{f' of {m}' if m else ''}\"",
        ["{…} host{s|} left{ of …|}"],
    ),
    "one text or none": ("x = f\"sent by {name or 'no host'}\"", ["sent by {…|no host}"]),
    "a text within a value": (
        "x = f\"leaving: {', '.join(f'{h} at once' for h in hosts)}\"",
        ["leaving: {…}", "{…} at once"],
    ),
    "a value with a default": ('def f(why="no reason is known"): ...', ["no reason is known"]),
    "what a script echoes": ('S = "echo \\"waits for code\\"\\nsleep 1\\n"', ["waits for code"]),
    "the same twice": ('x = ["it is over", "it is over"]', ["it is over"]),
}


@pytest.mark.parametrize(("source", "said"), SAYS.values(), ids=SAYS)
def test_what_a_user_may_read_is_found(source: str, said: list[str]) -> None:
    assert texts(source) == said


SILENT = {
    "docstrings": '"""A text of a module."""\ndef f():\n    """Does a thing."""\nX = 1\n"""What it is."""',
    "comments": "x = 1  # for a reason",
    "types": 'def f(a: "int or None" = None) -> "a list of int":\n    b: "a kind of thing" = cast("some kind", a)',
    "an alias of types": 'A: TypeAlias = "one type or another"',
    "a pattern": 'P = re.compile(r"No such (file|folder) is")\nQ = (r"no space left",)',
    "texts that are looked for": 'if "no such host" in answer or answer.startswith("not found here"): pass',
    "a single word": 'x = "stalled"',
    "values alone": 'x = f"{a}: {b} ({c})"',
    "an option and its value": 'x = f"--settle {value}"',
    "a command": 'run(["git", "rev-parse", "--show-toplevel"])',
    "a program": 'P = "import sys\\nsys.exit(main of x)\\n"',
    "a header": 'x = "Content-Type: text/plain; charset=utf-8"',
}


@pytest.mark.parametrize("source", SILENT.values(), ids=SILENT)
def test_what_no_user_reads_is_left_out(source: str) -> None:
    assert texts(source) == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder, text in (("discover", "no pods match"), ("hvd_elastic_ext/launcher", "no host is left")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "said.py").write_text(f'log.info("{text}")\nlog.info("it goes on")\n')
        (tmp_path / folder / "silent.py").write_text("x = 1\n")
    return tmp_path


def test_texts_are_grouped_by_module_in_the_order_of_the_source(tree: Path) -> None:
    said = texts_of_tree(tree)
    assert said == {
        "discover/said.py": ["no pods match", "it goes on"],
        "hvd_elastic_ext/launcher/said.py": ["no host is left", "it goes on"],
    }
    assert as_file({**said, "x.py": ["first\n\n  second"]}) == textwrap.dedent(
        """\
        discover/said.py
          no pods match
          it goes on

        hvd_elastic_ext/launcher/said.py
          no host is left
          it goes on

        x.py
          first

                second
        """
    )


def test_a_reworded_line_is_shown_below_its_module_before_and_after(tree: Path) -> None:
    before = now(tree)
    assert differences(before, now(tree)) == ""
    said = tree / "discover/said.py"
    said.write_text(said.read_text().replace("no pods match", "no pod matches"))
    assert differences(before, now(tree)).splitlines() == [
        "discover/said.py",
        "-  no pods match",
        "+  no pod matches",
    ]
    (tree / "hvd_elastic_ext/launcher/said.py").unlink()
    assert differences(before, now(tree)).splitlines()[-3:] == [
        "hvd_elastic_ext/launcher/said.py",
        "-  no host is left",
        "-  it goes on",
    ]


def test_every_program_says_something() -> None:
    written = FILE.read_text(encoding="utf-8")
    assert [folder for folder in FOLDERS if f"\n\n{folder}/" not in written] == []
