"""The program that a job's command names, whether this machine has it, and the job's name after it."""

from __future__ import annotations

import ast
import difflib
import hashlib
import itertools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.errors import UsageError

LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1"})
"""Names that mean the machine itself on every machine."""
PREPARING = (".", "cd", "exec", "export", "set", "source", "ulimit", "umask")
"""Built-in commands of a shell that come before the program that it runs."""
SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
RUNNERS = ("cProfile", "coverage", "pdb", "profile", "torch.distributed.launch", "torch.distributed.run", "trace")
"""Modules that run the script named after them."""


def runnable(command: Sequence[str]) -> tuple[str, ...]:
    """``command``, with this Python before a script that is not executable, as torchrun does it.

    Raises :class:`UsageError` for a ``NAME.py`` that is neither in this folder nor a program.
    """
    words = tuple(command[1:] if command[:1] == ["--"] else command)
    script = words[0] if words else ""
    if script.endswith(".py") and os.sep not in script and not Path(script).exists() and shutil.which(script) is None:
        remedy = nearest(script, _files(Path.cwd())) or "give the script's path"
        raise UsageError(f"there is no {script} in {Path.cwd()}; {remedy}")
    if not script.endswith(".py") or not Path(script).is_file() or shutil.which(script) is not None:
        return words
    return (sys.executable, *words)


def check_here(command: Sequence[str]) -> None:
    """Raise :class:`UsageError` if the first word of ``command`` is neither a file nor a program of this machine.

    Only for jobs whose hosts are this machine: other hosts may have other programs.
    """
    name = command[0] if command else ""
    if not name or Path(name).exists() or shutil.which(name) is not None:
        return
    if os.sep in name:
        there = Path(name).parent
        near = nearest(Path(name).name, _files(there), within=there)
        raise UsageError(f"there is no {name}; {near or 'give the path of a script or program'}")
    near = nearest(name, [*_files(Path.cwd()), *_programs()])
    what = f"{name} is not a file in {Path.cwd()}, nor a program on PATH"
    raise UsageError(f"{what}; {near or 'give a script, as in hvd-elastic run -np 2 train.py, or a program'}")


def nearest(name: str, there: Iterable[str], *, within: Path = Path()) -> str:
    """``did you mean …?`` with the most similar name; empty if none is similar. ``name`` with ``.py`` comes first.
    Pure."""
    known = list(dict.fromkeys(there))
    near = [f"{name}.py"] if f"{name}.py" in known else difflib.get_close_matches(name, known, n=1)
    return f"did you mean {within / near[0]}?" if near else ""


def _files(folder: Path) -> list[str]:
    try:
        return sorted(each.name for each in folder.iterdir() if each.is_file())
    except OSError:
        return []


def _programs() -> list[str]:
    folders = map(Path, filter(None, os.get_exec_path()))
    return [name for folder in folders for name in _files(folder)]


def job_name(command: Sequence[str]) -> str:
    """A job's name when none is given: that of the first script or module that its command runs, else of the command.

    Of ``bash -c`` it is that of what the shell runs; of ``python -c`` every program has another name.
    """
    return re.sub(r"[^A-Za-z0-9._-]", "-", _what_runs(command)).lstrip("._-")[:100] or "job"


def _what_runs(words: Sequence[str]) -> str:
    program = ""
    for before, word in itertools.pairwise(["", *words]):
        name = Path(word).name
        if before == "-m" and program == "python" and word not in RUNNERS:
            return word
        if program in SHELLS and re.fullmatch(r"-[a-z]*c", before):
            return _what_runs(_without_builtins(_shell_words(word)))
        if before == "-c" and program == "python":
            return f"python-{hashlib.blake2b(word.encode(), digest_size=4).hexdigest()}"
        if word.endswith((".py", ".sh")) and before not in ("source", "."):
            return Path(word).stem
        if name in SHELLS or re.fullmatch(r"python[0-9.]*", name):
            program = name.rstrip("0123456789.")
    return Path(words[0]).stem if words else "job"


def joins_itself(command: Sequence[str]) -> str | None:
    """The script of ``command``, if it calls ``init_process_group()``, and neither it nor a module beside it imports
    this package. None also for what cannot be read: the process reports that.
    """
    script = next((Path(word) for word in command if word.endswith(".py") and Path(word).is_file()), None)
    tree = None if script is None else _parsed(script)
    if script is None or tree is None or not any(map(_is_join, ast.walk(tree))):
        return None
    names = {name.partition(".")[0] for name in _imported(tree)}
    beside = [script.parent / f"{name}.py" for name in names] + [script.parent / name / "__init__.py" for name in names]
    known = names.union(*(_imported(module) for path in beside if (module := _parsed(path)) is not None))
    return None if any(name.partition(".")[0] == "hvd_elastic_ext" for name in known) else str(script)


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _is_join(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and "init_process_group" in (
        getattr(node.func, "attr", None),
        getattr(node.func, "id", None),
    )


def _imported(tree: ast.Module) -> set[str]:
    """The modules that it imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def _without_builtins(words: list[str]) -> list[str]:
    """The words from the first command on that does more than prepare."""
    start = 0
    for at, (before, word) in enumerate(itertools.pairwise(["", *words])):
        if before and set(before) <= set(";&|()"):
            start = at
        if at == start and word not in PREPARING and not set(word) <= set(";&|()"):
            break
    return words[start:]


def _shell_words(text: str) -> list[str]:
    lexer = shlex.shlex(text.replace("\n", ";"), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # an open quotation: the shell reports it
        return text.split()
