"""What comes from another rank is plain data or a record of the own script, and harmless to read whoever wrote it."""

from __future__ import annotations

import collections
import copyreg
import fractions
import functools
import io
import operator
import os
import pathlib
import pickle
import subprocess
import sys
import types
import uuid
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.worker.commits import numpy_codec, tree_codec
from tests.unit.worker import records
from tests.unit.worker.records import NOTHING, Best, Colour, Mode, Own, Point, there_and_back


class Slot:
    """A tensor's place, crafted."""

    def __init__(self, index: Any, kind: Any = "") -> None:
        self.arguments = (index, kind)

    def __reduce__(self) -> Any:
        return tree_codec.tensor_at, self.arguments


class Call:
    """Pickled as a call of any function with any arguments, with any state to be built on what it gives."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.reduced


def rewritten(data: bytes) -> bytes:
    """Read by another rank, but with names that are only there when the program is run as ``python script.py``."""
    return data.replace(records.__name__.encode(), b"__main__")


def test_what_is_neither_plain_nor_held_here_is_refused_with_the_way_out() -> None:
    data = tree_codec.write({"mine": Own()}, [])
    with pytest.raises(Permanent, match=rf"the State of rank 3 holds {records.__name__}\.Own, .*elastic\.admit\(Own\)"):
        tree_codec.read(data, never, admitted=NOTHING, source="rank 3")


def test_what_the_own_state_holds_too_or_the_user_admitted_is_read() -> None:
    data = tree_codec.write({"mine": Own()}, [])
    for admitted in (tree_codec.names_in(tree_codec.write([Own()], [])), tree_codec.names_of([Own])):
        assert tree_codec.read(data, never, admitted=admitted)["mine"].value == 1


@pytest.fixture
def as_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of the records is the training script."""
    monkeypatch.setitem(sys.modules, "__main__", records)


def never(index: int, kind: str) -> Any:
    raise AssertionError("there is no tensor")


@pytest.mark.usefixtures("as_script")
@pytest.mark.parametrize("value", [Colour.RED, Colour.BLUE, Mode.A | Mode.B, Point(1, [2]), Best(0.5, [1])], ids=repr)
def test_records_of_the_users_own_script_are_read(value: Any) -> None:
    back = there_and_back([value])[0]
    assert back == value
    assert type(back) is type(value)


@pytest.mark.usefixtures("as_script")
def test_an_enumeration_that_an_early_python_3_11_writes_by_getattr_is_read_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Colour, "__reduce_ex__", lambda self, proto: (getattr, (Colour, self.name)))
    assert there_and_back([Colour.BLUE]) == [Colour.BLUE]


@pytest.mark.parametrize("script", ["/train.py", "/usr/bin/torchrun", str(Path(pickle.__file__).parents[2] / "x.py")])
def test_records_of_installed_packages_are_not_the_users_wherever_the_script_lies(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = types.ModuleType("__main__")
    main.__file__ = script
    monkeypatch.setitem(sys.modules, "__main__", main)
    for module, name in [("hypothesis", "Phase"), ("torch.profiler", "ProfilerAction"), ("inspect", "_ParameterKind")]:
        with pytest.raises(Permanent):
            tree_codec.read(named(module, name), never, admitted=NOTHING)


@pytest.mark.usefixtures("as_script")
@pytest.mark.parametrize("name", ["enum.Enum", "Path", "Own", "Best.__init__", "subprocess.Popen", "os.system"])
def test_what_the_script_only_imports_or_reaches_is_not_its_own(name: str) -> None:
    with pytest.raises(Permanent):
        tree_codec.read(named("__main__", name), never, admitted=NOTHING)
    with pytest.raises(Permanent):
        tree_codec.read(named(records.__name__, name), never, admitted=NOTHING)


def named(module: str, name: str, *, protocol: int = 4) -> bytes:
    """Bytes that find ``module.name``."""
    if protocol < 4:
        return b"c" + f"{module}\n{name}\n".encode() + b"."
    words = b"".join(b"\x8c" + bytes([len(word)]) + word.encode() for word in (module, name))
    return b"\x80\x04" + words + b"\x93."


def called(module: str, name: str, *arguments: Any, protocol: int = 4) -> bytes:
    """Bytes that call ``module.name(*arguments)``."""
    pushed = pickle.dumps(arguments, protocol=2)[2:-1]
    return named(module, name, protocol=protocol)[:-1] + pushed + b"R."


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


def attacks(canary: Path) -> dict[str, bytes]:
    command, code = f"touch {canary}", f"open({str(canary)!r}, 'w').close()"
    dump = functools.partial(pickle.dumps, protocol=5)
    found: dict[str, bytes] = {
        "os.system": dump(Call(os.system, command)),
        "posix.system": called("posix", "system", command),
        "posix.system, old protocol": called("posix", "system", command, protocol=0),
        "eval": dump(Call(eval, code)),
        "exec": dump(Call(exec, code)),
        "eval under its old name": called("__builtin__", "eval", code, protocol=0),
        "Popen": dump(Call(subprocess.Popen, ["touch", str(canary)])),
        "a partial": dump(Call(functools.partial(os.system, command))),
        "a partial that is made here": dump(Call(functools.partial, Call(getattr, os, "system")))
        if False
        else dump(Call(functools.partial, os.system, command)),
        "getattr": dump(Call(getattr, list, "append")),
        "getattr of a function found": dump(Call(getattr, tree_codec.sparse_at, "__globals__")),
        "attrgetter": dump(Call(operator.attrgetter, "__globals__")),
        "methodcaller": dump(Call(operator.methodcaller, "system", command)),
        "torch.load": dump(Call(torch.load, str(canary))),
        "pickle.loads": dump(Call(pickle.loads, pickle.dumps(Call(os.system, command)))),
        "numpy.load": dump(Call(numpy.load, str(canary))),
        "an argument that is an attack": dump(Call(dict, [("a", Call(os.system, command))])),
        "a value that is an attack": dump(
            {Call(collections.OrderedDict): 1} if False else {"a": [Call(os.system, command)]}
        ),
        "a state that is an attack": dump(Call(types.SimpleNamespace, state={"a": Call(os.system, command)})),
        "items that are an attack": dump(Call(collections.OrderedDict, Call(os.system, command))),
        "copyreg._reconstructor": dump(Call(copyreg._reconstructor, Own, object, None)),  # type: ignore[attr-defined]
        "copyreg.__newobj__": called("copyreg", "__newobj__", 1),
        "copyreg.pickle": called("copyreg", "pickle", 1, 2),
        "_codecs.encode": called("_codecs", "encode", b"x", "rot13"),
        "codecs.lookup": called("codecs", "lookup", "rot13"),
        "importlib": called("importlib", "import_module", "antigravity"),
        "a module that would be imported": named("antigravity", "fly"),
        "a name inside a plain type": named("fractions", "Fraction.__init__"),
        "globals of a plain type's method": named("fractions", "Fraction.__new__.__globals__"),
        "a module inside torch": named("torch", "os.system"),
        "torch.hub": called("torch.hub", "load", "x", "y"),
        "numpy's reconstruction": called("numpy._core.multiarray", "_reconstruct", 1),
        "numpy's old reconstruction": called("numpy.core.multiarray", "_reconstruct", 1),
        "numpy's type": dump(Call(numpy.dtype, "V8", state=(3, "|", None, None, None, 8, 1, 0))),
        "an array of pointers": dump(Call(numpy_codec.array_at, "O", (1,), "C", b"\x01" * 8)),
        "an array of records with pointers": dump(Call(numpy_codec.array_at, "i4,O", (1,), "C", b"\x01" * 12)),
        "an array larger than its bytes": dump(Call(numpy_codec.array_at, "f8", (1000,), "C", b"\x01" * 8)),
        "an array of no type": dump(Call(numpy_codec.array_at, Call(list), (1,), "C", b"\x01" * 8)),
        "a scalar pointer": dump(Call(numpy_codec.scalar_at, "O", b"\x01" * 8)),
        "objects of another shape": dump(Call(numpy_codec.objects_at, (2, 2), [1])),
        "renaming a file": dump(Call(uuid.UUID, pathlib.PosixPath(canary.parent / "file"))),
        "a persistent name": b"\x80\x04\x8c\x01aQ.",
        "an extension": b"\x80\x04\x82\x01.",
        "a buffer from outside": b"\x80\x05\x97.",
        "a tensor that is none": dump(Slot(99)),
        "a tensor by name": dump(Slot("x")),
    }
    for target in (fractions.Fraction, collections.OrderedDict, tree_codec.sparse_at, numpy_codec.array_at, list):
        name = f"{target.__module__}.{target.__qualname__}"
        found[f"attributes of {name}"] = built_on(target, (None, {"hidden": 1}))
        found[f"contents of {name}"] = built_on(target, {"hidden": 1})
    found["code of a function"] = built_on(tree_codec.sparse_at, (None, {"__code__": 1, "__defaults__": (1,)}))
    found["a tensor's hooks"] = dump(Call(tree_codec.tensor_at, 0, "", state=(True, None, {0: print})))
    found["a tensor's memory"] = dump(Call(tree_codec.tensor_at, 0, "", state=(1, 2, 3, 4)))
    return found


def built_on(target: Any, state: Any) -> bytes:
    return pickle.dumps(target, 4)[:-1] + pickle.dumps(state, 2)[2:-1] + b"b."


@pytest.mark.parametrize("attack", attacks(Path("x")))
def test_an_attack_is_refused_and_runs_nothing(attack: str, canary: Path) -> None:
    before = dict(vars(fractions.Fraction))
    canary.with_name("file").touch()
    code, modules = tree_codec.sparse_at.__code__, {"antigravity"} & sys.modules.keys()
    with pytest.raises(Permanent) as refusal:
        tree_codec.read(attacks(canary)[attack], lambda index, kind: [torch.ones(1)][index], admitted=NOTHING)
    assert "\n" not in str(refusal.value)
    assert [path.name for path in canary.parent.iterdir()] == ["file"]
    assert dict(vars(fractions.Fraction)) == before
    assert tree_codec.sparse_at.__code__ is code
    assert not hasattr(tree_codec.sparse_at, "hidden")
    assert {"antigravity"} & sys.modules.keys() == modules


def test_a_sparse_tensor_that_reaches_beyond_itself_is_refused() -> None:
    parts = [torch.tensor([[7]]), torch.tensor([1.0])]
    crafted = pickle.dumps(Call(tree_codec.sparse_at, Slot(0), Slot(1), (2,)), protocol=5)
    with pytest.raises(Permanent, match="cannot be read"):
        tree_codec.read(crafted, lambda index, kind: parts[index], admitted=NOTHING)


REACHES = [getattr, setattr, eval, exec, compile, open, __import__, vars, operator.attrgetter, operator.methodcaller]


@pytest.mark.parametrize("function", [*REACHES, os.system, subprocess.Popen, pickle.loads], ids=str)
def test_with_what_anything_can_be_reached_is_refused_though_the_own_state_holds_it(function: Any) -> None:
    held = tree_codec.names_in(pickle.dumps([function], protocol=5))
    assert held
    with pytest.raises(Permanent, match="anything could be run here; keep it out of the State"):
        tree_codec.read(pickle.dumps([function], protocol=5), never, admitted=held)


@pytest.mark.usefixtures("as_script")
def test_a_member_of_an_enumeration_is_not_changed_for_everybody() -> None:
    crafted = rewritten(pickle.dumps(Call(Colour, 1, state={"_value_": 7}), protocol=4))
    with pytest.raises(Permanent, match="would change"):
        tree_codec.read(pickle.dumps(Call(Colour, 1, state={"_value_": 7}), protocol=5), never, admitted=NOTHING)
    with pytest.raises(Permanent):
        tree_codec.read(crafted, never, admitted=NOTHING)
    assert Colour.RED.value == 1


@pytest.mark.usefixtures("as_script")
def test_the_users_own_types_are_not_changed_for_everybody() -> None:
    for target in (Best, Colour, Own):
        with pytest.raises(Permanent, match="would change"):
            tree_codec.read(built_on(target, (None, {"hidden": 1})), never, admitted=tree_codec.names_of([Own]))
        assert not hasattr(target, "hidden")


HERE = sorted(name for name in tree_codec.PLAIN if name[0] != "pathlib._local" or sys.version_info >= (3, 13))


@pytest.mark.parametrize("name", HERE, ids=".".join)
def test_no_plain_name_runs_what_it_is_given_or_shows_what_lies_behind_it(name: tree_codec.Name, canary: Path) -> None:
    """Whatever is called is itself something that was found: so each is called with all of them, and with data."""
    code = f"open({str(canary)!r}, 'w')"
    found = [named(*other)[:-1] for other in HERE]
    data = [pickle.dumps(each, 2)[2:-1] for each in (code, [code], {"a": code}, (code,), b"x", 1, 10**6)]
    for argument in [*found, *data]:
        for arguments in (argument, argument * 2, argument * 3):
            count = len(arguments) // len(argument)
            head = named(*name)[:-1] + arguments + {1: b"\x85", 2: b"\x86", 3: b"\x87"}[count]
            for tail in (b"R.", b"\x81."):
                try:
                    back = tree_codec.read(head + tail, lambda index, kind: [torch.ones(1)][index], admitted=NOTHING)
                except Permanent:
                    continue
                assert not isinstance(back, types.CodeType | types.ModuleType | io.IOBase | types.FrameType)
    assert not canary.exists()


@given(st.data())
def test_damaged_bytes_are_refused_or_are_plain_data(data: st.DataObject) -> None:
    tree = {"a": [1, (2.5, None)], "n": numpy.arange(3), "t": torch.ones(2), "p": pathlib.PurePosixPath("x")}
    tensors: list[Tensor] = []
    whole = bytearray(tree_codec.write(tree, tensors))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        kind = data.draw(st.sampled_from(["change", "cut", "drop"]))
        if kind == "change":
            whole[at] = data.draw(st.integers(0, 255))
        elif kind == "drop" and len(whole) > 1:
            del whole[at]
        else:
            whole = whole[: max(1, at)]
    try:
        tree_codec.read(bytes(whole), lambda index, kind: tensors[index], admitted=NOTHING)
    except Permanent:
        return


@given(st.binary(max_size=60))
def test_bytes_that_are_no_tree_are_refused_or_are_plain_data(garbage: bytes) -> None:
    for protocol in (b"", b"\x80\x05"):
        try:
            tree_codec.read(protocol + garbage, lambda index, kind: torch.ones(1), admitted=NOTHING)
        except Permanent:
            continue


def test_ones_own_memory_that_is_damaged_is_refused_too() -> None:
    with pytest.raises(Permanent, match="cannot be read"):
        tree_codec.read(tree_codec.write([1, 2, 3], [])[:-2], never, admitted=None)
