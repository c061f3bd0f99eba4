"""A function as a script of its own: by its name where it can be imported, else by its source and all that it uses.

Nothing is pickled: what is sent can be read, and what cannot be sent is named.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError

_END: Final = """

if __name__ == "__main__":
    import sys as _sys

    from hvd_elastic_ext.jobs.local.results import called as _called

    _called({name}, _sys.argv[1])
"""


def script_of(function: Callable[..., Any]) -> str:
    """The text of the script. Raises :class:`UsageError` for a function that cannot be sent, with the reason."""
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        raise UsageError(f"{function!r} is no function with a name: write def train(...): …")
    parts: dict[str, str] = {}
    name = _add(function, function.__name__, parts, what=function.__name__)
    return "from __future__ import annotations\n\n" + "\n".join(parts.values()) + _END.format(name=name)


def _add(value: Any, name: str, parts: dict[str, str], *, what: str) -> str:
    """Add what makes ``name`` mean ``value``, and before it all that this needs; return the name."""
    if name in parts:
        return name
    if isinstance(value, ModuleType):
        parts[name] = f"import {value.__name__} as {name}"
    elif _is_plain(value):
        parts[name] = f"{name} = {value!r}"
    elif (inspect.isfunction(value) or inspect.isclass(value)) and _importable(value):
        parts[name] = f"from {value.__module__} import {value.__qualname__} as {name}"
    elif inspect.isfunction(value) or inspect.isclass(value):
        _add_source(value, name, parts, what=what)
    elif type(value).__module__ == "builtins" and getattr(value, "__module__", None):
        parts[name] = f"from {value.__module__} import {value.__name__} as {name}"
    else:
        raise UsageError(f"{what} uses {name}, a {type(value).__name__}, which cannot be sent: make it within {what}")
    return name


def _add_source(value: Any, name: str, parts: dict[str, str], *, what: str) -> None:
    around = inspect.getclosurevars(value).nonlocals if inspect.isfunction(value) else {}
    if around:
        raise UsageError(f"{what} uses {', '.join(sorted(around))} of the function around it: pass it in args")
    try:
        text = textwrap.dedent(inspect.getsource(value))
        tree = ast.parse(text)
    except (OSError, TypeError, SyntaxError) as error:
        raise UsageError(f"{what}: the source of {name} is not known ({error}); put it into a module") from None
    parts[name] = ""  # it may use itself
    known = value.__globals__ if inspect.isfunction(value) else vars(inspect.getmodule(value))
    used = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    for each in used:
        if each in known and not (hasattr(builtins, each) and known[each] is getattr(builtins, each)):
            _add(known[each], each, parts, what=what)
    del parts[name]  # after what it needs
    parts[name] = f"\n\n{text}" if value.__name__ == name else f"\n\n{text}\n{name} = {value.__name__}"


def _importable(value: Any) -> bool:
    return value.__module__ not in ("__main__", "__mp_main__") and "." not in value.__qualname__


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(each) for key, each in value.items())
    return value is None or type(value) in (bool, int, float, str, bytes)
