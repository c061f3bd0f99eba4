"""Lines of a shell script that call ``arena``, as lines that call ``hvd-elastic``. Pure.

What is written between its words stays as it is: quotes, variables, line ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

ALIKE: Final[Mapping[str, str]] = {"submit": "submit", "get": "get", "list": "list", "logs": "logs", "delete": "delete"}
"""Commands with an equal, under the name that it has here."""
SAME_KINDS: Final = ("etjob", "et", "mpijob", "mpi", "horovodjob", "horovod", "pytorchjob", "pytorch")
SCALE: Final = ("scalein", "scaleout")
OTHERS: Final[Mapping[str, Mapping[str, bool]]] = {
    "logs": {"-f": False, "--follow": False, "--tail": True},
    "get": {"-o": True, "--output": True},
    "list": {"-o": True, "--output": True},
}
"""Options of commands besides ``submit``, and whether each has a value."""
WITHOUT_VALUE: Final = frozenset({
    "--gang", "--gputopology", "--hostIPC", "--hostNetwork", "--hostPID", "--mounts-on-launcher", "--queue", "--rdma",
    "--spot-instance", "--tensorboard", "--timestamps", "-A", "--all-namespaces", "--allNamespaces", "-e", "--events",
    "-f",
})  # fmt: skip
"""arena's switches; all other options have a value."""

NAMESPACE: Final = ("-n", "--namespace")

BY_HAND: Final = "# NO EQUAL: arena is called within this line; write the call on a line of its own"
_CALL: Final = re.compile(r"(?:\S*/)?arena")
_WITHIN: Final = re.compile(r"[^'#]*(?:\$\(|`)(?:\S*/)?arena")
_BEFORE: Final = re.compile(r"\S*;|\w+=\S*|&&?|\|\|?|[!({]|if|then|else|elif|do|while|until|time|exec|sudo|nohup")
"""What may come before a command in a line."""

_JOINED: Final = "\\\n"
_WORD: Final = re.compile(r"""(?:[^\s'"\\]|\\[^\n]|'[^']*'|"(?:[^"\\]|\\.)*")+""", re.DOTALL)
_LINE: Final = re.compile(r"""(?:[^\n'"\\#]|\\.|'[^']*'|"(?:[^"\\]|\\.)*"|\#[^\n]*)+""", re.DOTALL)


class Word(NamedTuple):
    """A word of a line, and the space before it."""

    before: str
    text: str


def convert(script: str, known: Mapping[str, bool], refused: Mapping[str, str]) -> str:
    """``known``: options of ``submit``, and whether each has a value; ``refused``: options of arena's without an
    equal, and why. Each line of ``arena`` gets comments above it."""
    made, last = [], 0
    for found in _LINE.finditer(script):
        made += [script[last : found.start()], _converted(found[0], known, refused)]
        last = found.end()
    return "".join([*made, script[last:]])


def is_script(text: str) -> bool:
    """Whether a text calls arena."""
    return re.search(r"^\s*(?:\S*/)?arena\s", text, re.MULTILINE) is not None


def _converted(line: str, known: Mapping[str, bool], refused: Mapping[str, str]) -> str:
    words: list[Word] = []
    last = 0
    for found in _WORD.finditer(line):
        words.append(Word(line[last : found.start()], found[0]))
        last = found.end()
    calls = [number for number in range(len(words)) if _is_call(words, number)]
    if len(words) < 2 or words[0].text.rpartition("/")[2] != "arena":
        return f"{BY_HAND}\n{line}" if calls else line
    command = words[1].text
    if command in SCALE:
        return _without_equal(
            line, f"{command} changes a number by a count; hvd-elastic scale NAME N -n NAMESPACE sets it"
        )
    if command not in ALIKE or (command == "submit" and (len(words) < 3 or words[2].text not in SAME_KINDS)):
        return _without_equal(line, "hvd-elastic has no such command or kind")
    kept, said = _options(words[2:], known if command == "submit" else OTHERS.get(command, {}), refused)
    if calls[1:]:
        said.append(BY_HAND)
    said.insert(0, f"# arena {command} -> hvd-elastic {ALIKE[command]}")
    start = [words[0]._replace(text="hvd-elastic"), words[1]._replace(text=ALIKE[command])]
    return "\n".join([*said, "".join(before + text for before, text in [*start, *kept])]) + line[last:]


def _is_call(words: list[Word], number: int) -> bool:
    """Whether a word is ``arena``, as a command."""
    before, text = words[number - 1].text if number else ";", words[number].text
    return bool(_WITHIN.fullmatch(text) or (_CALL.fullmatch(text) and _BEFORE.fullmatch(before)))


def _options(words: list[Word], known: Mapping[str, bool], refused: Mapping[str, str]) -> tuple[list[Word], list[str]]:
    kept: list[Word] = []
    said: list[str] = []
    drop = False
    for number, word in enumerate(words):
        is_command = number == len(words) - 1 and any(map(str.isspace, word.text))
        if drop and not (is_command or word.text.startswith("-")):  # else the option before was a switch
            drop = False
            said[-1] += f" {word.text}"
            continue
        drop = False
        option, equals, _ = word.text.partition("=")
        if not option.startswith("-") or option in NAMESPACE or option in {*known} - {*refused}:
            kept.append(word)
            continue
        why = refused.get(option, "hvd-elastic has no such option")
        said.append(f"# NO EQUAL: {why}: {word.text}")
        drop = not equals and option not in WITHOUT_VALUE
    return kept, said


def _without_equal(line: str, why: str) -> str:
    return f"# NO EQUAL: {why}\n# {' '.join(line.replace(_JOINED, ' ').split())}"
