"""Values as text: exact both ways, a closed list of types, and harmless to read whoever wrote the text."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import datetime
import decimal
import functools
import gc
import json
import math
import pathlib
import sys
import time
import tracemalloc
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hvd_elastic_ext.checkpoint.values import read as reading
from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.checkpoint.values import write as writer
from hvd_elastic_ext.checkpoint.values.read import CLASHING, DEEPEST, as_live, check, plain, read
from hvd_elastic_ext.checkpoint.values.write import Unfit, is_fit, write
from hvd_elastic_ext.core.errors import StateError
from tests.unit.checkpoint.values.records import Best, Colour, Key, Listed, Mode, Own, Point, Word

HERE = "tests.unit.checkpoint.values.records"


def there_and_back(value: Any) -> Any:
    tensors: list[Tensor] = []
    data = trees.encode({"part": write(value, tensors)})
    return read(trees.decode(data)["part"], lambda index, kind: tensors[index].clone())


def said(value: Any) -> Any:
    """The value in words that are equal for what is the same: NaN is like itself, a set has no order, a type counts."""
    if isinstance(value, dict):
        more = vars(value) if isinstance(value, collections.OrderedDict) else None
        factory = getattr(value, "default_factory", None)
        return type(value), [(said(key), said(inner)) for key, inner in value.items()], factory, more
    if isinstance(value, set | frozenset):
        return type(value), sorted(map(repr, value))
    if isinstance(value, list | tuple | collections.deque):
        return type(value), list(map(said, value)), getattr(value, "maxlen", None)
    if isinstance(value, numpy.ndarray):
        return value.dtype.str, value.shape, value.flags.fnc, value.tobytes()
    if isinstance(value, Tensor):
        return value.dtype, value.layout, value.to_dense().tolist()
    return type(value), getattr(value, "dtype", None), repr(value)


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.binary(max_size=5)
    | st.text(max_size=5) | st.text(st.characters(categories=["Cs", "Cc", "Zl"]), max_size=3)
    | st.sampled_from([Colour.RED, Point(1, "b"), numpy.float32(1.5), torch.int8, 1 << 5000, -(1 << 1024)])
)  # fmt: skip
KEYS = st.integers() | st.floats() | st.text(max_size=3) | st.tuples(st.integers(), st.text(max_size=2)) | st.none()
WORDS = st.text(max_size=3) | st.sampled_from(["$tuple", "$", "\0$"])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    rows, table = st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)
    return st.one_of(
        rows,
        st.lists(st.integers() | st.floats() | st.text(max_size=2), min_size=17, max_size=20),
        *(rows.map(kind) for kind in (tuple, collections.deque, lambda row: collections.deque(row, 9))),
        *(table.map(kind) for kind in (dict, collections.OrderedDict, lambda row: collections.defaultdict(list, row))),
        st.dictionaries(WORDS, inner, max_size=3),
        st.dictionaries(KEYS, st.integers(), max_size=3).map(collections.Counter),
        st.sets(KEYS, max_size=4),
        st.frozensets(KEYS, max_size=4),
    )


@given(st.recursive(SCALARS, containers, max_leaves=12))
def test_values_nested_in_any_way_come_back_exact(value: Any) -> None:
    assert said(there_and_back(value)) == said(value)


def with_metadata() -> Any:
    return nn.Sequential(nn.BatchNorm1d(2)).state_dict()


VALUES: list[Any] = [
    {(1, 2): {"a"}}, {Key("a"), Key("b")}, collections.defaultdict(None, {1: 2}), collections.defaultdict(dict),
    Best(0.5, [Point(1, None)]), Key("k"), Own.Inner(1), Colour.BLUE, Mode.B, {Colour.RED: 1}, with_metadata(),
    torch.float32, torch.bfloat16, torch.device("cpu"), torch.device("cuda:1"), torch.Size([1, 2]),
    numpy.arange(6).reshape(2, 3), numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)), numpy.ones((4, 4))[::2, 1:],
    numpy.empty((0, 3)), numpy.array(3.5), numpy.array(["a", "long"]), numpy.array([b"x"]), numpy.array([1 + 2j]),
    numpy.array([1, 2], dtype=">i4"), numpy.array(["2020-01-01", "NaT"], dtype="datetime64[s]"),
    numpy.array([[True, False]]), numpy.float64("nan"), numpy.int64(-3), numpy.bool_(True), numpy.str_("x"),
    numpy.datetime64("2020-01-01"), math.nan, -0.0, torch.eye(3).to_sparse(), torch.zeros(2, 2).to_sparse(),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_of_each_type_comes_back_exact(value: Any) -> None:
    assert said(there_and_back([value])) == said([value])
    assert dataclasses.is_dataclass(value) is dataclasses.is_dataclass(there_and_back(value))


def test_a_nan_keeps_its_bits_and_an_array_can_be_written_to() -> None:
    odd = numpy.array([0x7FF8000000000123], dtype="u8").view("f8")[0].item()
    assert numpy.float64(there_and_back(odd)).tobytes() == numpy.float64(odd).tobytes()
    live = numpy.zeros(3)
    back = there_and_back(live)
    back += 1
    assert (back.tolist(), live.tolist()) == ([1, 1, 1], [0, 0, 0])


def test_equal_values_are_equal_text_whatever_the_order_of_sets_and_whatever_is_shared() -> None:
    betas = (0.9, 0.999)
    assert write([{8, 0, "a"}, betas, betas], []) == write([{"a", 0, 8}, (0.9, 0.999), (0.9, 0.999)], [])


def test_tensors_are_taken_out_uncopied_in_order_and_one_is_one_again() -> None:
    weight, frozen = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(2), requires_grad=False)
    leaf, value = torch.ones(3, requires_grad=True), torch.ones(4)
    tensors: list[Tensor] = [value]
    text = write({"a": [weight, frozen], "b": [leaf, value, leaf * 2, weight]}, tensors)
    assert [id(tensor) for tensor in tensors[1:5]] == list(map(id, (weight, frozen, leaf, value)))
    told: list[tuple[int, str]] = []
    back = read(text, lambda index, kind: told.append((index, kind)) or torch.ones(1))  # type: ignore[func-returns-value]
    assert told == [(1, "parameter"), (2, "frozen"), (3, "leaf"), (4, ""), (5, "")]
    assert back["a"][0] is back["b"][3]


def many() -> dict[str, Any]:
    """As a model and its optimizer have them."""
    return {
        "model": {f"p{number}": nn.Parameter(torch.zeros(1)) for number in range(20)} | {"buffer": torch.zeros(1)},
        "state": {number: {"step": torch.zeros(1), "average": torch.zeros(1)} for number in range(20)},
    }


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "nothing": lambda model, state: None,
    "frozen": lambda model, state: model["p3"].requires_grad_(False),
    "a leaf": lambda model, state: state[3]["step"].requires_grad_(True),
    "another class": lambda model, state: model.update(p3=torch.zeros(1)),
    "a number": lambda model, state: state[3].update(step=1.0),
    "sparse": lambda model, state: state[3].update(step=torch.zeros(1).to_sparse()),
    "one twice": lambda model, state: state[3].update(step=state[4]["step"]),
    "one of another dict": lambda model, state: state[3].update(step=model["buffer"]),
    "another key": lambda model, state: model.update(p20=model.pop("p3")),
    "a key of the notation": lambda model, state: model.update({"$p": model.pop("p3")}),
    "an equal key of another class": lambda model, state: state.update({True: state.pop(1)}),
    "an equal name of another class": lambda model, state: state[3].update({Word.average: state[3].pop("average")}),
    "another order": lambda model, state: state[3].update(step=state[3].pop("step")),
    "a key less": lambda model, state: state[3].pop("step"),
    "other rows": lambda model, state: [row.update(step=row.pop("step")) for row in state.values()],
    "one more before": lambda model, state: model.update(p20=nn.Parameter(torch.zeros(1))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_many_tensors_are_written_as_they_are_now_and_not_as_they_were(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = many()
    tree["state"][1] = tree["state"].pop(1)  # the last, where another key can take its place
    write(tree, [])
    CHANGES[change](tree["model"], tree["state"])
    texts, lists = [], [[], []]  # type: ignore[var-annotated]
    texts.append(write(tree, lists[0]))
    monkeypatch.setattr(writer._Writer, "_alike", lambda self, values: None)
    texts.append(write(tree, lists[1]))
    assert texts[0] == texts[1]
    if change != "sparse":
        assert list(map(id, lists[0])) == list(map(id, lists[1]))


def test_a_sparse_tensor_comes_back_coalesced() -> None:
    doubled = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,), check_invariants=True)
    assert there_and_back(doubled).to_dense().tolist() == [3, 0, 0]


# What a State cannot hold


def ring() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


def doubled() -> Any:
    value: Any = {}
    for _ in range(60):
        value = [value, value]
    return value


def local() -> Any:
    return dataclasses.make_dataclass("Local", ["a"])(1)


def annotated() -> Any:
    best = Best(1.0)
    best.more = 1  # type: ignore[attr-defined]
    return best


UNFIT: dict[str, Callable[[], Any]] = {
    r"it is the function <function <lambda>.*, which is not a plain value": lambda: lambda: 1,
    r"it is the type <class 'dict'>": lambda: dict,
    r"it is a datetime\.datetime": lambda: datetime.datetime(2020, 1, 1),
    r"it is a decimal\.Decimal": lambda: decimal.Decimal(1),
    r"it is a pathlib\.\w*Path": lambda: pathlib.Path(),
    r"it is a functools\.partial|it is the partial": lambda: functools.partial(print),
    r"it is a types\.SimpleNamespace": types.SimpleNamespace,
    r"it is a tests\.\S+\.Own, which is not a plain value": Own,
    r"it is a range|it is a builtins\.range": lambda: range(3),
    r"it is a \S*Counted": lambda: type("Counted", (dict,), {})(),
    r"it is a \S*Listed": Listed,
    r"several members of Mode as one": lambda: Mode.A | Mode.B,
    r"class \S*Local is not found under that name": local,
    r"Best with 'more', which is not a field": annotated,
    r"defaultdict of <function": lambda: collections.defaultdict(lambda: 1),
    r"it is a Linear$": lambda: nn.Linear(1, 1),
    r"NumPy data of the type object": lambda: numpy.array([None]),
    r"NumPy data of the type \[\('a'": lambda: numpy.zeros(1, dtype=[("a", "i4")]),
    r"numpy\.matrix|matrix": lambda: numpy.matrix([1]),
    r"quantized tensors": lambda: torch.quantize_per_tensor(torch.ones(1), 1.0, 0, torch.qint8),
    r"meta tensors": lambda: torch.ones(1, device="meta"),
    r"layout torch\.sparse_csr": lambda: torch.eye(2).to_sparse_csr(),
    r"nested tensors": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
    r"not initialised yet": lambda: nn.LazyLinear(1).weight,
    r"nested more than 64 levels deep, or holds itself": ring,
    r"lists and dicts; keep numbers in a tensor": doubled,
}


@pytest.mark.parametrize("why", UNFIT)
@pytest.mark.filterwarnings("ignore")
def test_what_is_not_on_the_list_is_refused_with_its_path(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvd_elastic_ext.checkpoint.values.write.MAX_CONTAINERS", 1000)
    value = UNFIT[why]()
    with pytest.raises(Unfit, match=why) as failure:
        write({"fine": 1, "a": [0, (value,)]}, [])
    assert failure.value.path.startswith("['a'][1][0]")
    assert "\n" not in str(failure.value)
    assert not is_fit(value)


@pytest.mark.parametrize(
    "around",
    [lambda value: {1: value}, lambda value: [value], lambda value: {"a": value},
     lambda value: collections.OrderedDict({1: value}), lambda value: Best(value)],
)  # fmt: skip
def test_a_value_may_be_as_deep_as_the_limit_whatever_is_beside_it(around: Callable[[Any], Any]) -> None:
    value: Any = 1
    for _ in range(DEEPEST - 1):
        value = around(value)
    beside = [{1: 2}, {"a": 1}, [[1]]] * DEEPEST
    assert there_and_back([*beside, value]) == [*beside, value]
    with pytest.raises(Unfit, match="levels deep"):
        write([*beside, around(value)], [])


@pytest.mark.parametrize("reader", [read, plain, lambda text, tensor: check(text)])
def test_text_that_is_deeper_than_any_value_is_refused_before_it_is_made(reader: Callable[..., Any]) -> None:
    reader(json.dumps(["[" * 400, '"[{' * 400]), never)
    with pytest.raises(StateError, match="nested more than 64 levels deep"):
        reader("[" * 400 + "]" * 400, never)


# Classes of the script


def record(tag: str, name: str, content: Any) -> str:
    return json.dumps({tag: [name, content]})


def test_reading_runs_no_code_of_a_class() -> None:
    back = read(record("$dataclass", f"{HERE}:Best", {"loss": "text", "weights": 1}), never)
    assert (type(back), back.loss) == (Best, "text")


@pytest.mark.parametrize(
    "name",
    ["antigravity:fly", f"{HERE}:Missing", f"{HERE}:NamedTuple", "os:system", "builtins:eval", "builtins:int",
     f"{HERE}:Best.__init__", f"{HERE}:Own", f"{HERE}:", ":", "", "torch:Tensor", "enum:Enum", f"{HERE}:dataclasses"],
)  # fmt: skip
@pytest.mark.parametrize("tag", ["$dataclass", "$namedtuple", "$enum"])
def test_a_class_that_is_not_imported_or_is_no_record_is_refused(tag: str, name: str) -> None:
    content: Any = "RED" if tag == "$enum" else {}
    with pytest.raises(StateError, match=r"a class that no imported module has|cannot be read") as failure:
        read(record(tag, name, content), never)
    assert "\n" not in str(failure.value)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("tag", "name", "content"),
    [("$dataclass", "Best", {"loss": 1}), ("$dataclass", "Best", {"loss": 1, "weights": 2, "__class__": 3}),
     ("$namedtuple", "Point", {"x": 1}), ("$namedtuple", "Point", [1, 2]), ("$enum", "Colour", "GREEN"),
     ("$enum", "Colour", "__class__"), ("$dataclass", "Listed", {"name": "a"}), ("$namedtuple", "Best", {}),
     ("$enum", "Point", "x")],
)  # fmt: skip
def test_a_record_of_another_form_is_refused(tag: str, name: str, content: Any) -> None:
    with pytest.raises(StateError):
        read(record(tag, f"{HERE}:{name}", content), never)


def test_other_fields_than_here_are_named_in_one_line() -> None:
    with pytest.raises(
        StateError, match=r"Best with the fields \['lost'\], and here it has \['loss', 'weights'\]; use"
    ):
        read(record("$dataclass", f"{HERE}:Best", {"lost": 1}), never)


def test_a_program_without_the_script_gets_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    value = [Best(0.5, Point(1, 2)), Colour.RED, {Key("a"): 1}, {Point(1, (2,))}, {Colour.RED}, torch.ones(1), {1: 2}]
    tensors: list[Tensor] = []
    text = write(value, tensors)
    monkeypatch.delitem(sys.modules, HERE)
    assert plain(text, lambda index, kind: tensors[index]) == [
        {f"{HERE}:Best": {"loss": 0.5, "weights": {f"{HERE}:Point": {"x": 1, "y": 2}}}},
        f"{HERE}:Colour.RED",
        {((f"{HERE}:Key", (("name", "a"),)),): 1},
        {((f"{HERE}:Point", (("x", 1), ("y", (2,)))),)},
        {f"{HERE}:Colour.RED"},
        torch.ones(1),
        {1: 2},
    ]
    with pytest.raises(StateError, match=f"holds a '{HERE}:Point', a class that no imported module has: import"):
        read(text, lambda index, kind: tensors[index])


# What somebody else wrote


def never(index: int, kind: str) -> Any:
    raise AssertionError("there is no tensor")


ROWS = ("$tuple", "$set", "$frozenset", "$size")
CRAFTED = [
    "", "{", "nul", "NaN", "Infinity", "[1", '"\n"', "[" * 100_000, '{"$call": ["os:system", "true"]}', '{"$": 1}',
    *(f'{{"{tag}": {given}}}'
      for tag in ("$tuple", "$set", "$frozenset", "$deque", "$dict", "$ordered", "$default", "$counter", "$int",
                  "$float", "$complex", "$bytes", "$namedtuple", "$dataclass", "$enum", "$array", "$scalar", "$dtype",
                  "$device", "$size", "$sparse", "$tensor")
      for given in ("null", "true", '"x"', "{}", "[[[1]]]", "[1,2,3,4,5]", '{"$bytes": "eA=="}', '[null, "x"]')
      if (tag, given) != ("$counter", "{}") and not (tag in ROWS and given[0] == "[")),
    '{"$set": [{"$set": []}]}', '{"$size": [0.5]}', '{"$size": [true]}',
    '{"$dict": [[{"$set": []}, 1]]}', '{"$dict": [1]}', '{"$default": ["eval", {}]}', '{"$deque": [[], -1]}',
    '{"$ordered": [{}, {"items": 1}]}', '{"$ordered": [{}, {"__class__": 1}]}', '{"$tensor": -1}', '{"$tensor": 9}',
    '{"$dtype": "Tensor"}', '{"$dtype": "os"}', '{"$device": "nowhere"}', '{"$int": "0x_1"}', '{"$float": "7f"}',
    '{"$bytes": "ä"}', '{"$array": ["O", [1], "C", "AQEBAQEBAQE="]}', '{"$array": ["i4,O", [1], "C", "AQEBAQ=="]}',
    '{"$array": ["<f8", [1000], "C", "AQEBAQEBAQE="]}', '{"$array": ["|V8", [1], "C", "AQEBAQEBAQE="]}',
    '{"$array": ["<f8", [-1], "C", "AQEBAQEBAQE="]}', '{"$scalar": ["O", "AQEBAQEBAQE="]}',
    '{"$sparse": [{"$tensor": 0}, {"$tensor": 0}, [2]]}', '{"$sparse": [1, 2, [2]]}',
]  # fmt: skip


@pytest.mark.parametrize("reader", [read, plain])
@pytest.mark.parametrize("text", CRAFTED, ids=lambda text: text[:40])
def test_text_that_the_writer_does_not_write_is_refused_in_one_line(reader: Any, text: str) -> None:
    with pytest.raises(StateError) as failure:
        reader(text, lambda index, kind: [torch.ones(1)][index])
    assert "\n" not in str(failure.value)


MANY = [sys.hash_info.modulus * number for number in range(1, 20_000)]
"""Numbers of one hash."""
DEEP = 60
BOMBS: dict[str, Callable[[], str]] = {
    "numbers of one hash": lambda: json.dumps({"$set": [{"$int": hex(number)} for number in MANY]}),
    "keys of one hash": lambda: json.dumps({"$dict": [[number, 1] for number in MANY]}),
    "tuples of one hash": lambda: json.dumps(
        {"$set": [{"$tuple": [1 << 61 * (place >> bit & 1) for bit in range(16)]} for place in range(20_000)]}
    ),
    "members that never change": lambda: json.dumps({"$frozenset": [{"$int": hex(number)} for number in MANY]}),
    "a shape without bytes": lambda: '{"$array": ["<f8", [3000000000], "C", ""]}',
    "elements of no width": lambda: '{"$array": ["|S", [3000000000], "C", ""]}',
    "wide elements": lambda: '{"$array": ["<U2000000000", [0], "C", ""]}',
    "an endless size": lambda: json.dumps({"$size": [1] * 100}),
    "decimal digits": lambda: "9" * 1_000_000,
    "an exponent": lambda: '{"$int": "1e999999"}',
    "levels": lambda: '{"$tuple": [' * 20_000 + "]}" * 20_000,
    "keys in keys": lambda: '{"$frozenset": [{"$namedtuple": ["a:b", {"c": ' * DEEP + "1" + "}]}]}" * DEEP,
}


@pytest.mark.parametrize("reader", [read, plain])
@pytest.mark.parametrize("name", BOMBS)
def test_a_few_words_take_neither_memory_nor_time_out_of_proportion(reader: Any, name: str) -> None:
    text = BOMBS[name]()
    began = time.process_time()
    peak = peak_of(reader, text, accepted=reader is plain and name == "keys in keys")
    assert time.process_time() - began < 3
    assert peak < (8 << 20) + 128 * len(text)


PIECES = st.recursive(
    st.integers(-(1 << 70), 1 << 70) | st.sampled_from(["x", "<f8", "|S", "1e9", "list", "0x1f", None, 0.5, {}])
    | st.just({"$tensor": 0}),
    lambda inner: st.lists(inner, max_size=4)
    | st.builds(
        lambda tag, given: {tag: given},
        st.sampled_from(["$tuple", "$set", "$frozenset", "$dict", "$ordered", "$default", "$counter", "$deque", "$int",
                         "$array", "$scalar", "$size", "$bytes", "$namedtuple", "$enum", "$sparse", "$device"]),
        inner,
    ),
    max_leaves=15,
)  # fmt: skip


@given(PIECES)
def test_no_small_text_takes_much_memory_whatever_it_says(document: Any) -> None:
    for reader in (read, plain):
        text = json.dumps(document)
        assert peak_of(reader, text, accepted=None) < (4 << 20) + 128 * len(text)


def peak_of(reader: Any, text: str, *, accepted: bool | None) -> int:
    """Bytes that reading takes at most; ``accepted`` says whether the text is read (None: either)."""
    gc.disable()  # what others left behind is not to be counted
    tracemalloc.start()
    try:
        reader(text, lambda index, kind: torch.ones(2))
        assert accepted is not False
    except StateError:
        assert accepted is not True
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        gc.enable()
    return peak


@given(st.data())
def test_damaged_text_is_refused_or_is_another_value(data: st.DataObject) -> None:
    tensors: list[Tensor] = []
    value = {"a": [1, (2.5, None)], "n": numpy.arange(3), "t": torch.ones(2), "p": Point(1, {2})}
    whole = bytearray(trees.encode({"part": write(value, tensors)}))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    for reader in (read, plain):
        try:
            trees.check(bytes(whole))
            for text in trees.decode(bytes(whole)).values():
                reader(text, lambda index, kind: tensors[index])
        except StateError:
            continue


def test_a_few_values_of_one_hash_are_no_attack() -> None:
    usual = {-1, -2, 0.5, 1 + 2j, *range(1000), *((number, "x") for number in range(1000)), *MANY[: CLASHING - 3]}
    assert there_and_back(usual) == usual


# Trees


def test_a_tree_is_one_json_object_with_a_line_for_each_part() -> None:
    tree = trees.encode({"model": write({"a\n": 1}, []), "": "2", "$values": "[3,4]"})
    assert tree == b'{"model":{"a\\n":1},\n"":2,\n"$values":[3,4]}'
    assert json.loads(tree) == {"model": {"a\n": 1}, "": 2, "$values": [3, 4]}
    assert trees.decode(tree) == {"model": '{"a\\n":1}', "": "2", "$values": "[3,4]"}


@pytest.mark.parametrize("tree", [b"", b"[]", b"7", b"{", b"\xff", b'{"a"', b"{1:2}", b"\x80\x05}.", b"[" * 100_000])
def test_bytes_that_are_no_tree_are_refused(tree: bytes) -> None:
    def read_all() -> None:
        trees.check(tree)
        trees.decode(tree)

    with pytest.raises(StateError):
        read_all()


def test_a_class_is_found_by_the_name_of_its_definition_only() -> None:
    assert reading.imported_class(f"{HERE}:Own.Inner") is Own.Inner
    assert reading.imported_class("builtins:int") is builtins.int
    assert reading.imported_class(f"{__name__}:Own") is None


# Values of a file, in the types of a State


@pytest.mark.parametrize(
    ("live", "given"),
    [(numpy.int64(0), 7), (numpy.int64(0), 3.0), (numpy.int8(0), -128), (numpy.bool_(False), True),
     (numpy.bool_(False), 1), (numpy.float64(0), 1), (numpy.float64(0), math.nan), (numpy.float32(0), -math.inf),
     (numpy.float32(0), 0.1), (numpy.longdouble(0), 0.1), (numpy.complex64(0), 0.1 + 2j), (numpy.str_("a"), "b"),
     (numpy.datetime64("2000-01-01"), "2026-01-01")],
)  # fmt: skip
def test_a_value_of_a_file_gets_the_type_that_the_state_has(live: Any, given: Any) -> None:
    made = as_live(live, given)
    assert (type(made), str(made)) == (type(live), str(type(live)(given)))


@pytest.mark.parametrize(
    ("live", "given"),
    [(numpy.int64(0), 0.7), (numpy.int64(0), math.nan), (numpy.int64(0), math.inf), (numpy.int64(0), "1"),
     (numpy.int8(0), 300), (numpy.uint8(0), -1), (numpy.bool_(False), "False"), (numpy.bool_(False), 2),
     (numpy.float32(0), 1e300), (numpy.float32(0), "0.5"), (numpy.float64(0), 10**400), (numpy.float64(0), 1j),
     (numpy.str_("a"), 1), (numpy.datetime64("2000-01-01"), "soon"), (numpy.datetime64("2000-01-01"), 3)],
)  # fmt: skip
def test_a_value_of_a_file_that_would_become_another_one_is_refused(live: Any, given: Any) -> None:
    with pytest.raises(StateError, match=rf"^it is .*, and the State has a numpy\.{type(live).__name__} there$"):
        as_live(live, given)


@pytest.mark.parametrize("given", [None, [1], {"a": 1}, b"a"])
def test_a_value_of_a_file_that_is_not_a_number_or_text_stays_as_it_is(given: Any) -> None:
    assert as_live(numpy.int64(0), given) is given
