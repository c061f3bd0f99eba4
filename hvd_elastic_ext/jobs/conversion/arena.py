"""Converts the lines of a shell script that call ``arena`` to lines that call ``hvd-elastic``. Pure.

Quotes, variables, spaces and line ends stay unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from hvd_elastic_ext.jobs.conversion.document import one_line
from hvd_elastic_ext.jobs.spec.words import ARENA_KINDS, SWITCHES, is_off

ALIKE: Final[Mapping[str, str]] = {
    **{name: name for name in ("submit", "get", "list", "logs", "delete", "attach")},
    "ls": "list",
    "log": "logs",
    "del": "delete",
    "top job": "top",
}
"""Commands that have an equivalent here, with its name."""
WITHIN: Final = ("submit", "top")
"""Commands that have a second word."""
BEFORE: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("-n", "--namespace", "--config", "--loglevel", "--arena-namespace"), True),
    **dict.fromkeys(("--pprof", "--trace", "--helm-binary"), False),
}
"""Options that arena allows before a command, and whether each has a value."""
INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(("scalein", "scaleout"), "hvd-elastic scale NAME N -n NAMESPACE sets the number of workers"),
    "top node": "kubectl top node shows what nodes use",
    "prune": "submit with --ttl-after-finished, and jobs that have ended go by themselves",
    "logviewer": "hvd-elastic logs prints them, hvd-elastic dashboard shows a page",
    "version": "hvd-elastic --version prints it",
}
"""What to do instead of commands that have no equivalent."""
NO_COMMAND: Final = "hvd-elastic has no such command or kind"
RENAMED: Final[Mapping[str, str]] = {"--config": "--kubeconfig", "--allNamespaces": "--all-namespaces"}
_POD: Final = {"-i": True, "--instance": True, "-c": True, "--container": True}
_FORM: Final = {"-o": True, "--output": True}
_ALL: Final = {"-A": False, "--all-namespaces": False}
OTHERS: Final[Mapping[str, Mapping[str, bool]]] = {
    "logs": {
        **_POD,
        **dict.fromkeys(("-f", "--follow", "--timestamps"), False),
        **dict.fromkeys(("-t", "--tail", "--since", "--since-time"), True),
    },
    "get": _FORM,
    "list": {**_FORM, **_ALL},
    "attach": _POD,
}
"""Options of commands besides ``submit``, and whether each has a value."""
_KIND: Final = "a name is looked for among jobs of all kinds"
_REFRESH: Final = "watch -n 2 hvd-elastic top NAME goes on"
NOT_THERE: Final[Mapping[str, str]] = {
    "-T": _KIND,
    "--type": _KIND,
    "-e": "hvd-elastic events NAME -n NAMESPACE shows them",
    "--events": "hvd-elastic events NAME -n NAMESPACE shows them",
    "-g": "hvd-elastic top NAME has the GPUs of each pod",
    "--gpus": "hvd-elastic top NAME has the GPUs of each pod",
    "-r": _REFRESH,
    "--refresh": _REFRESH,
}
"""Options of those commands that have no equivalent, and what to do instead."""
WITHOUT_VALUE: Final = SWITCHES | {
    "--timestamps", "-A", "--all-namespaces", "--allNamespaces", "-e", "--events", "-f", "-g", "-r", "--refresh",
}  # fmt: skip
"""arena's switches; all other options have a value."""

CLUSTER: Final = ("-n", "--namespace", "--kubeconfig")

BY_HAND: Final = "# NO EQUAL: arena is called within this line; write the call on a line of its own"
_CALL: Final = re.compile(r"(?:\S*/)?arena")
_WITHIN: Final = re.compile(r"[^'#]*(?:\$\(|`)(?:\S*/)?arena")
_OPERATOR: Final = re.compile(r"&&?|\|\|?|;|\d*[<>].*|&>.*|#.*", re.DOTALL)
_BEFORE: Final = re.compile(r"\S*;|\w+=\S*|&&?|\|\|?|[!({]|if|then|else|elif|do|while|until|time|exec|sudo|nohup")
"""Words that may stand before a command in a line."""

_JOINED: Final = "\\\n"
_WORD: Final = re.compile(r"""(?:[^\s'"\\]|\\[^\n]|'[^']*'|"(?:[^"\\]|\\.)*")+""", re.DOTALL)
_LINE: Final = re.compile(r"""(?:[^\n'"\\#]|\\.|'[^']*'|"(?:[^"\\]|\\.)*"|\#[^\n]*)+""", re.DOTALL)


class Word(NamedTuple):
    """A word of a line, and the space before it."""

    before: str
    text: str


def convert(script: str, known: Mapping[str, bool], refused: Mapping[str, str]) -> str:
    """Convert a script. ``known``: options of ``submit``, and whether each has a value; ``refused``: arena's options
    without an equivalent, and why. Each line of ``arena`` gets comments above it."""
    made, last = [], 0
    for match in _LINE.finditer(script):
        made += [script[last : match.start()], _converted(match[0], known, refused)]
        last = match.end()
    return "".join([*made, script[last:]])


def is_script(text: str) -> bool:
    """Whether a text calls arena."""
    return re.search(r"^[ \t]*(?:\S*/)?arena\s", text, re.MULTILINE) is not None


def _converted(line: str, known: Mapping[str, bool], refused: Mapping[str, str]) -> str:
    words: list[Word] = []
    last = 0
    for match in _WORD.finditer(line):
        text = match[0].removesuffix(";") or match[0]
        words.append(Word(line[last : match.start()], text))
        if text != match[0]:
            words.append(Word("", ";"))
        last = match.end()
    calls = [number for number in range(len(words)) if _is_call(words, number)]
    if len(words) < 2 or words[0].text.rpartition("/")[2] != "arena":
        return f"{BY_HAND}\n{line}" if calls else line
    end = _end(words)
    name, moved, given = _command(words[1:end])
    if name not in ALIKE:
        kind_of = name.partition(" ")[0]
        return _without_equal(line, INSTEAD.get(name) or INSTEAD.get(kind_of) or NO_COMMAND)
    ours = ALIKE[name]
    kind = given.pop(0) if ours == "submit" and given else None
    if ours == "submit" and (kind is None or kind.text not in ARENA_KINDS):
        return _without_equal(line, NO_COMMAND)
    why = refused if ours == "submit" else {**refused, **NOT_THERE}
    kept, notes = _options([*moved, *given], known if ours == "submit" else OTHERS.get(ours, {}), why)
    if ours == "attach":
        kept = _with_dashes(kept)
    if calls[1:]:
        notes.append(BY_HAND)
    notes.insert(0, f"# arena {name} -> hvd-elastic {ours}")
    start = [words[0]._replace(text="hvd-elastic"), Word(" ", ours), *([] if kind is None else [kind])]
    return (
        "\n".join([*map(one_line, notes), "".join(before + text for before, text in [*start, *kept, *words[end:]])])
        + line[last:]
    )


def _end(words: list[Word]) -> int:
    """Return where the words of a call end: a redirection or another command follows."""
    for number, (_, text) in enumerate(words):
        if _OPERATOR.fullmatch(text):
            return number
    return len(words)


def _command(words: list[Word]) -> tuple[str, list[Word], list[Word]]:
    """Return the command's name, the options before it, and the words after it."""
    moved: list[Word] = []
    names: list[str] = []
    left = list(words)
    while left and len(names) < 1 + bool(names and names[0] in WITHIN):
        option, equals, _ = left[0].text.partition("=")
        if option in BEFORE:
            count = 1 + (BEFORE[option] and not equals)
            moved += left[:count]
            del left[:count]
        elif names == ["submit"]:
            break  # the kind stays
        else:
            names.append(left.pop(0).text)
    return " ".join(names), moved, left


def _with_dashes(words: list[Word]) -> list[Word]:
    """``attach``: the command that runs in the pod comes after ``--``, and options before that."""
    at = next((number for number, word in enumerate(words) if word.text == "--"), len(words))
    options: list[Word] = []
    bare: list[Word] = []
    takes = False
    for word in words[:at]:
        is_option = word.text.startswith("-")
        (options if is_option or takes else bare).append(word)
        takes = is_option and "=" not in word.text
    if at < len(words) or len(bare) < 2:
        return words
    return [*options, bare[0], Word(" ", "--"), *bare[1:]]


def _is_call(words: list[Word], number: int) -> bool:
    """Whether a word is ``arena``, as a command."""
    before, text = words[number - 1].text if number else ";", words[number].text
    return bool(_WITHIN.fullmatch(text) or (_CALL.fullmatch(text) and _BEFORE.fullmatch(before)))


def _options(words: list[Word], known: Mapping[str, bool], refused: Mapping[str, str]) -> tuple[list[Word], list[str]]:
    kept: list[Word] = []
    notes: list[str] = []
    drop = False
    for number, word in enumerate(words):
        if word.text == "--":
            return [*kept, *words[number:]], notes
        is_command = number == len(words) - 1 and any(map(str.isspace, word.text))
        if drop and not (is_command or word.text.startswith("-")):  # else the option before was a switch
            drop = False
            notes[-1] += f" {word.text}"
            continue
        drop = False
        option, equals, value = word.text.partition("=")
        if option in RENAMED:
            notes.append(f"# {option} -> {RENAMED[option]}")
            option = RENAMED[option]
            word = word._replace(text=f"{option}{equals}{value}")
        if not option.startswith("-") or option in CLUSTER or option in {*known} - {*refused}:
            kept.append(word)
            continue
        if is_off(word.text):
            notes.append(f"# {word.text} left out: it is off")
            continue
        why = refused.get(option, "hvd-elastic has no such option")
        notes.append(f"# NO EQUAL: {why}: {word.text}")
        drop = not equals and option not in WITHOUT_VALUE
    return kept, notes


def _without_equal(line: str, why: str) -> str:
    return f"# NO EQUAL: {why}\n# {one_line(' '.join(line.replace(_JOINED, ' ').split()))}"
