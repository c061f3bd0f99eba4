"""A function as a script of its own: by its name where it can be imported, else by its source and all that it uses.

Nothing is pickled: the script is readable, and an error names an object that cannot be sent.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import inspect
import math
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError

_END: Final = """

if __name__ == "__main__":
    import sys as _sys

    from hvd_elastic_ext.jobs.local.results import run_and_store as _run_and_store

    _run_and_store({name}, _sys.argv[1])
"""
_OURS: Final = ("__main__", "__mp_main__")
"""Modules that do not exist in the job."""
_GLOBAL: Final = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def script_of(function: Callable[..., Any]) -> str:
    """The text of the script. Raises :class:`UsageError` for a function that cannot be sent, with the reason."""
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        raise UsageError(f"{function!r} is not a function with a name: write def train(...): …")
    parts: dict[str, str] = {}
    name = _add(function, function.__name__, parts, what=function.__name__)
    return "from __future__ import annotations\n\n" + "\n".join(parts.values()) + _END.format(name=name)


def _add(value: Any, name: str, parts: dict[str, str], *, what: str) -> str:
    """Add a definition of ``name`` as ``value``, after the definitions that it needs; return the name."""
    if name in parts:
        return name
    if isinstance(value, ModuleType):
        parts[name] = f"import {value.__name__} as {name}"
    elif _is_plain(value):
        parts[name] = f"{name} = {_literal(value)}"
    elif (inspect.isfunction(value) or inspect.isclass(value)) and _importable(value):
        parts[name] = f"from {value.__module__} import {value.__qualname__} as {name}"
    elif inspect.isfunction(value) or inspect.isclass(value):
        _add_source(value, name, parts, what=what)
    elif (there := _in_its_module(value)) is not None:
        parts[name] = f"from {value.__module__} import {there} as {name}"
    else:
        raise UsageError(f"{what} uses {name}, a {type(value).__name__}, which cannot be sent: make it within {what}")
    return name


def _add_source(value: Any, name: str, parts: dict[str, str], *, what: str) -> None:
    plain = inspect.unwrap(value)
    around = inspect.getclosurevars(plain).nonlocals if inspect.isfunction(plain) else {}
    if around:
        raise UsageError(f"{what} uses {', '.join(sorted(around))} of the function around it: pass it in args")
    try:
        text = textwrap.dedent(inspect.getsource(plain))
        tree = ast.parse(text)
    except (OSError, TypeError, SyntaxError) as error:
        raise UsageError(f"{what}: the source of {name} is not known ({error}); put it into a module") from None
    if _wrappers(value) > sum(len(getattr(each, "decorator_list", ())) for each in tree.body):
        raise UsageError(f"{what}: {name} has more around it than its source says: write that as a decorator")
    parts[name] = ""  # the definition may use its own name
    names = plain.__globals__ if inspect.isfunction(plain) else vars(inspect.getmodule(plain))
    used = _used(text)
    for each in [*used, *(each for each in _annotations(tree) if each not in used)]:
        if each not in names or (hasattr(builtins, each) and names[each] is getattr(builtins, each)):
            continue
        trial = dict(parts)
        try:
            _add(names[each], each, trial, what=what)
        except UsageError:
            if each in used:
                raise
            continue  # only an annotation uses the name, and annotations are not evaluated in the script
        parts |= trial
        _add_submodules(names[each], each, tree, parts)
    del parts[name]  # moved behind the definitions that it needs
    parts[name] = f"\n\n{text}" if value.__name__ == name else f"\n\n{text}\n{name} = {value.__name__}"


def _wrappers(value: Any) -> int:
    count = 0
    while hasattr(value, "__wrapped__"):
        value, count = value.__wrapped__, count + 1
    return count


def _used(text: str) -> dict[str, None]:
    """Return the names that a function or class looks up outside itself: neither its own variables nor annotations."""
    annotations = __future__.annotations.compiler_flag
    names: dict[str, None] = {}
    codes = [compile(text, "<function>", "exec", flags=annotations, dont_inherit=True)]
    while codes:
        code = codes.pop()
        names |= {each.argval: None for each in dis.get_instructions(code) if each.opname in _GLOBAL}
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    names.pop("__name__", None)  # each class has this one
    return names


def _annotations(tree: ast.AST) -> dict[str, None]:
    nodes = [getattr(node, field, None) for node in ast.walk(tree) for field in ("annotation", "returns")]
    return {each.id: None for node in nodes if node for each in ast.walk(node) if isinstance(each, ast.Name)}


def _add_submodules(value: Any, name: str, tree: ast.AST, parts: dict[str, str]) -> None:
    """Import the submodules in use: ``import concurrent.futures`` gives the name ``concurrent``, whose module has no
    ``futures`` until that is imported."""
    if not isinstance(value, ModuleType):
        return
    for path in _paths(tree, name):
        module: ModuleType = value
        for each in path:
            inner = getattr(module, each, None)
            if not isinstance(inner, ModuleType) or inner is not sys.modules.get(f"{module.__name__}.{each}"):
                break
            parts[f"{name}.{inner.__name__}"] = f"import {inner.__name__} as _"
            module = inner


def _paths(tree: ast.AST, name: str) -> Iterator[list[str]]:
    """Yield each sequence of attributes that the source reads from ``name``."""
    for node in ast.walk(tree):
        words: list[str] = []
        while isinstance(node, ast.Attribute):
            words.insert(0, node.attr)
            node = node.value
        if words and isinstance(node, ast.Name) and node.id == name:
            yield words


def _in_its_module(value: Any) -> str | None:
    """Return the name under which the value's module has it, as for a function in C or ``Optional``; None if it has
    none."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__name__", None)
    if not (isinstance(module, str) and isinstance(name, str)) or module in _OURS:
        return None
    return name if getattr(sys.modules.get(module), name, None) is value else None


def _importable(value: Any) -> bool:
    return value.__module__ not in _OURS and "." not in value.__qualname__


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(_is_plain(key) and _is_plain(each) for key, each in value.items())
    return value is None or type(value) in (bool, int, float, str, bytes)


def _literal(value: Any) -> str:
    """Return a Python literal; ``inf`` and ``nan`` have none, so they become calls of ``float``."""
    match value:
        case dict():
            return f"{{{', '.join(f'{_literal(key)}: {_literal(each)}' for key, each in value.items())}}}"
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case tuple():
            return f"({''.join(f'{_literal(each)}, ' for each in value)})"
        case float() if not math.isfinite(value):
            return f"float({str(value)!r})"
        case _:
            return repr(value)
