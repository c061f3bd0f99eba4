"""Mistakes on a command line: the real one first, with what is nearest to it."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.option_parser import Parser, nearest


def parser() -> Parser:
    options = Parser(prog="tool")
    options.add_argument("--quiet", action="store_true")
    commands = options.add_subparsers(dest="do", required=True)
    move = commands.add_parser("move", surplus="a place is named with --to")
    move.add_argument("what", metavar="WHAT")
    move.add_argument("--to", required=True)
    move.add_argument("--pair", nargs=2)
    move.add_argument("--many", nargs="*")
    move.add_argument("-p", type=int)
    commands.add_parser("remove", allow_abbrev=False).add_argument("--force", action="store_true")
    return options


@pytest.mark.parametrize(
    ("words", "line", "help_of"),
    [
        ("", "which command? There are move, remove", "tool"),
        ("--quiet", "which command? There are move, remove", "tool"),
        ("mov x", "there is no command 'mov'; did you mean move?", "tool"),
        ("zzz", "there is no command 'zzz'; there are move, remove", "tool"),
        ("--quite move x", "--quite is not an option; did you mean --quiet?", "tool"),
        ("--to y move x", "--to comes after the command, as in: tool move --to", "tool"),
        ("move", "WHAT, --to is missing", "tool move"),
        ("move x --too y", "--too is not an option; did you mean --to?", "tool move"),
        ("move --pair a --b --quiet", "--quiet is not an option", "tool move"),
        ("move --many a b --mani", "--mani is not an option; did you mean --many?", "tool move"),
        ("move x y --to z", "'y' is one word too many; a place is named with --to", "tool move"),
        ("move x --to z -p q", "-p 'q': write a whole number, such as -p 2", "tool move"),
        ("remove --force=yes", "--force has no value; leave 'yes' out", "tool remove"),
        ("remove --forc", "--forc is not an option; did you mean --force?", "tool remove"),
        ("remove x", "'x' is one word too many; leave it out", "tool remove"),
    ],
)
def test_a_mistake_is_two_lines_with_the_nearest_option(words: str, line: str, help_of: str) -> None:
    with pytest.raises(UsageError) as error:
        parser().parse_args(words.split())
    first, second = str(error.value).splitlines()
    assert first.startswith(line)
    assert second == f"`{help_of} --help` lists all options"


def test_options_in_every_usual_form_are_read() -> None:
    found = parser().parse_args(["--quiet", "move", "-p22", "--pair", "a", "b", "--to=z", "--", "--x"])
    assert (found.quiet, found.do, found.p, found.pair, found.to, found.what) == (
        *(True, "move", 22, ["a", "b"]),
        *("z", "--x"),
    )


def test_help_is_given_whatever_follows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parser().parse_args(["move", "--help", "--nonsense"])
    assert not end.value.code
    assert "usage: tool move" in capsys.readouterr().out


def test_without_a_second_line_an_error_is_one() -> None:
    with pytest.raises(UsageError, match=r"^--x is not an option$"):
        Parser(prog="tool", see="").parse_args(["--x"])


@pytest.mark.parametrize("word", ["--keep", "--lead", "-x"])
def test_what_is_not_close_is_not_offered(word: str) -> None:
    """Defect: --help was offered for --keep, since the dashes count."""
    with pytest.raises(UsageError, match=rf"^{word} is not an option$"):
        Parser(prog="tool", see="").parse_args([word])


def test_all_that_is_there_is_named_where_nothing_is_near() -> None:
    assert nearest("moev", ["move", "remove"]) == "did you mean move?"
    assert nearest("q", ["move", "remove"]) == "there are move, remove"


def test_a_word_that_is_no_number_is_told_by_the_name_of_its_place() -> None:
    options = Parser(prog="tool")
    options.add_argument("number", metavar="N", type=int)
    with pytest.raises(UsageError, match=r"^N 'many': write a whole number, such as 2\n"):
        options.parse_args(["many"])
