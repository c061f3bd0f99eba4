"""What the program says, read from its source: the texts that may reach a user, by module, in the order of the source.

Most sentences are put together: a reason is worded in one room, and another room logs it. So each string with two words
or more counts, wherever it stands, but for those that nobody reads: docstrings, types, patterns (raw strings), and what
texts of others are compared with. Of code for a shell or another interpreter, what it has in quotes counts.

In an f-string, ``{…}`` stands for a value, and ``{a|b}`` for one of two texts. ``%s`` stays, and so do the names in a
template of ``str.format``. Spaces at both ends are left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
FOLDERS: Final = ("discover", "hvd_elastic_ext", "scripts/tooling")
"""All that a user runs. The last one is ``hvd-elastic build-horovod``."""

VALUE: Final = "{…}"
_WORD: Final = re.compile(r"(?<![\w/.<$=-])[A-Za-z][a-z']+(?![\w/<=(\[])")
_CODE: Final = re.compile(
    r"^\s*(import \w|from \w+ import|def |export |echo |mkdir |if \[|autoload |told=|#[!i]|</?[!a-z])", re.MULTILINE
)
_FORM: Final = re.compile(r"\r\n|; charset=|^#include|^\{?</?[!a-z]")
"""What only texts of a protocol, includes of C++ and markup have."""
_LOOKS: Final = {
    *("startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "rsplit"),
    *("find", "index", "count", "compile", "search", "match", "fullmatch", "findall", "finditer"),
}
"""Functions that look for their text in another."""


def texts_of_tree(root: Path, folders: Iterable[str] = FOLDERS) -> dict[str, list[str]]:
    """The texts of each module below ``folders`` that has any, by its path from ``root``."""
    paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    found = {path.relative_to(root).as_posix(): texts(path.read_text(encoding="utf-8")) for path in paths}
    return {path: said for path, said in found.items() if said}


def texts(source: str) -> list[str]:
    """The texts of one module, each once."""
    reader = _Reader(source)
    reader.visit(ast.parse(source))
    return list(dict.fromkeys(reader.found))


def as_file(said: Mapping[str, Iterable[str]]) -> str:
    """Texts as a file: a line each, below the path of their module. Further lines of a text are indented more."""
    return "\n".join("".join((f"{path}\n", *map(_lines, found))) for path, found in said.items())


def _lines(text: str) -> str:
    first, *more = text.splitlines()
    return "".join((f"  {first.rstrip()}\n", *(f"      {line}".rstrip() + "\n" for line in more)))


class _Reader(ast.NodeVisitor):
    def __init__(self, source: str) -> None:
        self.found: list[str] = []
        self._lines = [line.encode() for line in source.split("\n")]

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._put(node.value, raw=self._is_raw(node))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._put(_shown(node), raw=self._is_raw(node))
        for value in _values(node):
            self.visit(value)

    def _put(self, text: str, *, raw: bool) -> None:
        bare = text.strip()
        if "\n" in bare and (raw or _CODE.search(bare)):
            for quoted in re.findall(r'"([^"\n]+)"', bare):
                self._put(quoted, raw=False)
        elif not raw and len(bare.split()) > 1 and _WORD.search(bare) and not _FORM.search(bare):
            self.found.append(bare)

    def _is_raw(self, node: ast.expr) -> bool:
        prefix, quote, _ = self._lines[node.lineno - 1][node.col_offset :].partition(b'"')
        return bool(quote) and b"r" in prefix.lower() and len(prefix) <= 2

    # -- what nobody reads

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant | ast.JoinedStr):  # a docstring
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and ast.unparse(node.annotation) != "TypeAlias":
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """Its annotation alone."""

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.decorator_list, node.args, *node.body):
            self.visit(part)

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function

    def visit_Compare(self, node: ast.Compare) -> None:
        for side in (node.left, *node.comparators):
            if not isinstance(side, ast.Constant):
                self.visit(side)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        self.visit(node.func)
        for argument in node.args[name in ("cast", "TypeVar") :] if name not in _LOOKS else ():
            self.visit(argument)
        for keyword in node.keywords:
            self.visit(keyword.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        if not isinstance(node.slice, ast.Constant):
            self.visit(node.slice)


# -- an f-string


def _shown(node: ast.expr) -> str:
    """Its text, with the texts that it chooses from."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_shown, parts))
        case ast.FormattedValue(value=ast.JoinedStr() as inner):
            return _shown(inner)
        case ast.FormattedValue(value=ast.IfExp() | ast.BoolOp(op=ast.Or()) as choice):
            ways = list(_ways(choice))
            return f"{{{'|'.join(ways)}}}" if set(ways) != {"…"} else VALUE
    return VALUE


def _ways(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            yield from _ways(body)
            yield from _ways(orelse)
        case ast.BoolOp(op=ast.Or(), values=values):
            for value in values:
                yield from _ways(value)
        case ast.Constant(value=str()) | ast.JoinedStr():
            yield _shown(node).replace(VALUE, "…")
        case _:
            yield "…"


def _values(node: ast.expr) -> Iterator[ast.expr]:
    """The expressions in it that :func:`_shown` does not show: they may have texts of their own."""
    match node:
        case ast.JoinedStr(values=parts):
            for part in parts:
                yield from _values(part)
        case ast.FormattedValue(value=inner):
            yield from _values(inner)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield test
            yield from _values(body)
            yield from _values(orelse)
        case ast.BoolOp(op=ast.Or(), values=values):
            for value in values:
                yield from _values(value)
        case ast.Constant(value=str()):
            return
        case _:
            yield node
