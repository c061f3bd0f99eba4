"""``hvd-elastic completion``: scripts that complete command lines in bash, zsh and fish, made from the parsers.

The scripts are static: at a key press, only names of jobs on a cluster start a command of ours.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from hvd_elastic_ext.io.option_parser import Parser

FILES: Final = re.compile(r"FILE|DIR|PATH|JOURNAL|STORE", re.ASCII)
"""Words in the name of a value that mark it as a file or folder."""


class Word(NamedTuple):
    """An option."""

    names: tuple[str, ...]
    help: str
    takes: bool
    """It has a value."""
    values: tuple[str, ...]
    """The allowed ones."""
    files: bool
    """The value is a file."""


class Completed(NamedTuple):
    """One command, or one subcommand."""

    does: str
    options: tuple[Word, ...] = ()
    below: Mapping[str, Completed] = {}
    values: tuple[str, ...] = ()
    named: bool = False
    """Its first word is a job on a cluster."""


Commands = Mapping[str, Completed]


def main(argv: Sequence[str], commands: Callable[[], Commands]) -> int:
    """Print a script. Raises :class:`UsageError` for another shell."""
    parser = Parser(
        prog="hvd-elastic completion",
        description="Print a script for a shell, which then completes commands, options, their values and jobs.",
        epilog='bash: eval "$(hvd-elastic completion bash)" in ~/.bashrc, or the output as a file below '
        "/etc/bash_completion.d; zsh: a file _hvd-elastic on $fpath; fish: ~/.config/fish/completions/hvd-elastic.fish",
    )
    parser.add_argument("shell", choices=tuple(SHELLS))
    sys.stdout.write(SHELLS[parser.parse_args(argv).shell](commands()))
    return 0


def completed(does: str, parser: argparse.ArgumentParser, *, cluster: bool = False) -> Completed:
    """Return the words that a parser accepts. ``cluster``: its NAME is a job on a cluster. Pure."""
    actions = [each for each in parser._actions if each.help != argparse.SUPPRESS]
    bare = [each for each in actions if not each.option_strings]
    below = next((each.choices for each in bare if isinstance(each, argparse._SubParsersAction)), {})
    first = bare[0] if bare and not below else None
    return Completed(
        does,
        tuple(_word(each) for each in actions if each.option_strings),
        {name: completed("", each) for name, each in below.items()},
        tuple(map(str, first.choices)) if first is not None and first.choices else (),
        cluster and first is not None and first.metavar == "NAME",
    )


def _word(action: argparse.Action) -> Word:
    return Word(
        names=tuple(action.option_strings),
        help=_line(action.help),
        takes=action.nargs != 0,
        values=tuple(map(str, action.choices)) if action.choices and action.nargs != 0 else (),
        files=bool(FILES.search(str(action.metavar or action.dest).upper())),
    )


def _line(text: str | None) -> str:
    return " ".join((text or "").replace("%%", "%").split()).partition("; ")[0]


def _all(commands: Commands) -> Iterator[tuple[str, Completed]]:
    """Yield each command and subcommand with its words."""
    for name, command in commands.items():
        yield name, command
        for below, each in command.below.items():
            yield f"{name} {below}", each


def bash(commands: Commands) -> str:
    """The script for bash, from 3.2 on. Pure."""
    below = "|".join(f'"{at}"' for at, _ in _all(commands) if " " in at)
    lines = ["# made by: hvd-elastic completion bash", "_hvd_elastic() {", *_BEGIN.replace("BELOW", below).splitlines()]
    lines += ["    case $at in", f"    '') list={_quoted(commands)} ;;"]
    for at, command in _all(commands):
        words = [*(name for word in command.options for name in word.names), *command.below, *command.values]
        lines.append(f"    {shlex.quote(at)}) list={_quoted(words)}{' jobs=1' * command.named} ;;")
    lines += ["    esac", "    case $at:$before in"]
    for at, command in _all(commands):
        for word in (each for each in command.options if each.takes):
            patterns = "|".join(shlex.quote(f"{at}:{name}") for name in word.names)
            lines.append(f"    {patterns}) list={_quoted(word.values)} jobs={' files=1' * word.files} ;;")
    return "\n".join([*lines, "    esac", _END])


def zsh(commands: Commands) -> str:
    """The script for zsh, which runs that for bash. Pure."""
    return f"#compdef hvd-elastic\nautoload -Uz +X bashcompinit && bashcompinit\n{bash(commands)}"


def fish(commands: Commands) -> str:
    """The script for fish. Pure."""
    lines = ["# made by: hvd-elastic completion fish", "complete -c hvd-elastic -f"]
    for name, command in commands.items():
        lines.append(f"{_FISH} __fish_use_subcommand -a {name} -d {_fish(command.does)}")
    for at, command in _all(commands):
        name, _, subcommand = at.partition(" ")
        when = f"__fish_seen_subcommand_from {name}" + f"; and __fish_seen_subcommand_from {subcommand}" * bool(
            subcommand
        )
        for word in (*command.below, *command.values):
            lines.append(f"{_FISH} {_fish(when)} -a {word}")
        if command.named:
            lines.append(f"{_FISH} {_fish(when)} -a {_fish(_JOBS)}")
        for option in command.options:
            lines.append(f"{_FISH} {_fish(when)} {_fish_option(option)}")
    return "\n".join(lines) + "\n"


def _fish_option(option: Word) -> str:
    words = []
    for name in option.names:
        long = name.startswith("--")
        words += ["-l" if long else "-s" if len(name) == 2 else "-o", name.lstrip("-")]
    if option.takes:
        words += ["-r" if option.files else "-x"]
        words += ["-a", _fish(" ".join(option.values))] if option.values else ["-F"] if option.files else []
    return " ".join([*words, "-d", _fish(option.help)])


def _fish(text: str) -> str:
    """Quote a text for fish in single quotes, in which only two characters are special."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))


_FISH: Final = "complete -c hvd-elastic -n"
_JOBS: Final = "(hvd-elastic list -o name 2>/dev/null | string replace -r '.*/' '')"
_BEGIN: Final = """\
    if [ -n "${ZSH_VERSION-}" ]; then emulate -L ksh; fi
    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" at="" list="" jobs="" files="" i
    if [ "$before" = = ]; then before="${COMP_WORDS[COMP_CWORD-2]}"; fi
    if [ "$word" = = ]; then before="${COMP_WORDS[COMP_CWORD-1]}" word=""; fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [ "${COMP_WORDS[i]}" = -- ]; then COMPREPLY=($(compgen -f -- "$word")); return; fi
        if [ $i = 1 ]; then at="${COMP_WORDS[1]}"; fi
        case "${COMP_WORDS[1]} ${COMP_WORDS[i]}" in BELOW) at="${COMP_WORDS[1]} ${COMP_WORDS[i]}" ;; esac
    done
"""
_END: Final = """\
    if [ -n "$files" ]; then COMPREPLY=($(compgen -f -- "$word")); return; fi
    if [ -n "$jobs" ]; then  # compgen expands words: no other text may get there
        case $word in
            -*) ;;
            *) list="$(hvd-elastic list -o name 2>/dev/null | sed -n 's,^.*/\\([A-Za-z0-9.-]*\\)$,\\1,p')" ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$list" -- "$word"))
}
complete -o bashdefault -o default -F _hvd_elastic hvd-elastic
"""

SHELLS: Final[Mapping[str, Callable[[Commands], str]]] = {"bash": bash, "zsh": zsh, "fish": fish}
