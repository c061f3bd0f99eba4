"""What an agent may be told, and what it says of the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.agent.orders import (
    AnswerQuestion,
    Drop,
    End,
    Finish,
    Forget,
    Join,
    Kill,
    Options,
    Order,
    OrderError,
    Pace,
    RunHelper,
    Start,
    Stop,
    Tell,
    completed,
    entry_of,
    read,
    read_welcome,
)
from hvd_elastic_ext.launcher.agents.environment import agent_options
from hvd_elastic_ext.launcher.agents.transports.transports import join_line
from hvd_elastic_ext.launcher.cli import run_options

SECRET = "hunter2"


def parse(line: bytes | None) -> Order:
    return read(entry_of(line))


def line(**order: object) -> bytes:
    return json.dumps(order).encode()


def start(**more: object) -> bytes:
    return line(**{"do": "start", "slot": 0, "argv": ["true"], **more})


def test_a_start_says_everything_about_its_process() -> None:
    order = parse(
        line(
            do="start",
            slot=3,
            argv=["python", "train.py", ""],
            env={"RANK": "0", "EMPTY": ""},
            cwd="/job",
            grace_s=2,
            commits=3,
            core=True,
            output="stderr",
            life=4,
            link=True,
            note="3",
        )
    )
    environment = {"RANK": "0", "EMPTY": ""}
    argv = ("python", "train.py", "")
    assert order == Start(3, argv, environment, "/job", 2.0, 3, True, "stderr", 4, True, "3")


JOIN = {"do": "join", "job": "j", "host": "h", "key": "00", "launcher": ["10.0.0.1", 5000], "incarnation": 2}
JOINED = Join("j", "h", "00", ("10.0.0.1", 5000), 2, 60.0, argv=("train",), env={"TOKEN": "t", "SEAT": "none"})


def test_a_start_has_what_the_join_said_of_every_process_unless_it_says_otherwise() -> None:
    started = read(completed({"do": "start", "slot": 0}, JOINED))
    assert started == parse(start(argv=["train"], env={"TOKEN": "t", "SEAT": "none"}))
    own = {"do": "start", "slot": 0, "argv": ["other"], "env": {"SEAT": "5"}}
    assert read(completed(own, JOINED)) == parse(start(argv=["other"], env={"TOKEN": "t", "SEAT": "5"}))
    assert own["env"] == {"SEAT": "5"}
    assert read(completed({"do": "start", "slot": 0, "env": None}, JOINED)) == started


@pytest.mark.parametrize("entry", [{"do": "stop", "slot": 0}, {"do": "start", "slot": 0, "env": [SECRET]}, {}])
def test_orders_that_start_nothing_or_are_wrong_are_left_as_they_are(entry: dict[str, Any]) -> None:
    assert completed(entry, JOINED) == entry


def test_a_join_says_environment_and_command_of_every_process_or_neither() -> None:
    usual = {"argv": ["train"], "env": {"TOKEN": "t", "SEAT": "none"}}
    assert parse(line(**JOIN, **usual)) == JOINED
    assert parse(line(**JOIN)) == JOINED._replace(argv=(), env={})


def test_a_join_says_which_files_are_to_be_compared_or_none() -> None:
    there = {"key": b"\0", "launcher": ("10.0.0.1", 5000), "incarnation": 2, "orphan_grace_s": 60.0}
    sent = join_line("j", "h", **there, code=b"\0x")
    assert parse(sent) == JOINED._replace(argv=(), env={}, code=b"\0x")


def test_by_default_no_core_is_dumped_and_there_is_memory_for_three_commits() -> None:
    order = parse(start())
    assert isinstance(order, Start)
    assert not order.core
    assert order.commits == 3


@pytest.mark.parametrize(
    ("order", "read"),
    [
        ({"do": "stop", "slot": 1}, Stop(1)),
        ({"do": "stop", "slot": 1, "grace_s": 0}, Stop(1, 0.0)),
        ({"do": "forget", "slot": 1}, Forget(1)),
        ({"do": "finish"}, Finish()),
        ({"do": "helper", "id": 3, "slots": [0, 2], "request": {"a": 1}}, RunHelper(3, (0, 2), {"a": 1})),
        ({"do": "drop", "slots": [1]}, Drop((1,))),
        ({"do": "kill", "slot": 3}, Kill(3)),
        ({"do": "tell", "to": {"0": 2, "7": 1}, "message": {"tell": "go"}}, Tell({0: 2, 7: 1}, {"tell": "go"})),
        ({"do": "answer", "slot": 0, "id": 9, "status": 200, "body": "YWI="}, AnswerQuestion(0, 9, 200, b"ab")),
        ({"do": "answer", "slot": 0, "id": 9, "status": 404}, AnswerQuestion(0, 9, 404, b"")),
        ({"do": "end", "job": "j", "host": "h", "key": "00"}, End("j", "h", "00", 0.0)),
        ({"do": "pace", "heartbeat_s": 2, "figures_every": 4}, Pace(2.0, 4)),
    ],
)
def test_the_other_orders_are_read(order: dict[str, Any], read: object) -> None:
    assert parse(line(**order)) == read


def test_a_welcome_may_say_what_only_a_later_version_knows() -> None:
    welcome = {"do": "welcome", "incarnation": 7, "heartbeat_s": 0.5, "of a later version": 1}
    assert read_welcome(welcome) == (7, Pace(0.5, 1), Options())


def test_an_agent_reads_all_options_that_a_launcher_sends() -> None:
    words = [
        "-np",
        "1",
        "--orphan-grace",
        "7",
        "--notices-from",
        "gcp",
        "--metadata-url",
        "http://m",
    ]
    words += ["--metadata-url", "http://m", "--agent-metrics", "9465", "--dashboard", "0", "true"]
    sent = agent_options(run_options.parse(words, {}), {"HVD_ELASTIC_NOTICE_FILE": "/run/n"})
    options = read_welcome({"do": "welcome", "incarnation": 7, **sent}).options
    assert options._asdict() == sent
    assert options == Options(7.0, "gcp", "http://m", "/run/n", "127.0.0.1:9465", observe=True)


@pytest.mark.parametrize("wrong", [{"notices_from": 1}, {"metrics": ""}, {"orphan_grace_s": -1}])
def test_a_welcome_with_an_invalid_option_is_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(OrderError):
        read_welcome({"do": "welcome", "incarnation": 7, **wrong})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "is longer than 8388608 bytes"),
        (b"", "is not JSON at character 0"),
        (b"\xff{}", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"{}", "'do' is missing"),
        (line(do="halt"), "'do' must be one of start, stop, kill, answer, tell, forget, helper, drop, finish"),
        (line(do=["start"]), "'do' must be one of start"),
        (line(do="finish", slot=1), "'slot' is not a known field; known fields are do"),
        (line(do="stop"), "'slot' is missing"),
        (line(do="stop", slot=-1), "'slot' must be a whole number from 0 to 1023"),
        (line(do="stop", slot=True), "'slot' must be a whole number from 0 to 1023"),
        (line(do="stop", slot=0, grace=1), "'grace' is not a known field; known fields are do, slot, grace_s"),
        (
            start(life=1, argvs=1),
            "'argvs' is not a known field; known fields are do, slot, argv, env, cwd, grace_s, commits, core, output, "
            "life, link, note",
        ),
        (start(argv="true"), "'argv' must be a list of strings that names a program"),
        (start(argv=[]), "'argv' must be a list of strings that names a program"),
        (start(argv=[""]), "'argv' must be a list of strings that names a program"),
        (start(argv=["a\0b"]), "'argv' must be a list of strings that names a program"),
        (start(argv=["a", 1]), "'argv' must be a list of strings that names a program"),
        (start(argv=["\ud800"]), "'argv' must be a list of strings that names a program"),
        (start(env=["A"]), "'env' must be an object"),
        (start(env={"A": 1}), "'env' must be an object of strings; the one named 'A' is not"),
        (start(env={"A=B": "x"}), "'env' must be an object of strings; the one named 'A=B' is not"),
        (start(cwd=""), "'cwd' must be a string that is not empty"),
        (start(grace_s=-1), "'grace_s' must be seconds from 0 to 1e+06"),
        (start(grace_s=float("nan")), "'grace_s' must be seconds from 0 to 1e+06"),
        (start(grace_s=10**400), "'grace_s' must be seconds from 0 to 1e+06"),
        (start(grace_s=True), "'grace_s' must be seconds from 0 to 1e+06"),
        (start(commits=17), "'commits' must be a whole number from 0 to 16"),
        (start(core=1), "'core' must be true or false"),
        (start(note=3), "'note' must be a name of at most 255 printable ASCII characters"),
        (start(output="file"), "'output' must be one of frames, stderr"),
        (line(do="tell", to={"0": 1}, message=[]), "'message' must be an object"),
        (line(do="tell", to={"first": 1}, message={}), "'to' must be an object of lives by slot"),
        (line(do="tell", to={"0": "1"}, message={}), "'to' must be an object of lives by slot"),
        (line(do="tell", to=[0], message={}), "'to' must be an object of lives by slot"),
        (start(life=0), "'life' must be a whole number from 1"),
        (line(do="answer", slot=0, id=1, status=99), "'status' must be a whole number from 100 to 599"),
        (line(do="answer", slot=0, id=1, status=200, body="a"), "'body' must be base64"),
        (line(do="answer", slot=0, id=1, status=200, body=5), "'body' must be base64"),
        (line(**{**JOIN, "launcher": "10.0.0.1:5000"}), "'launcher' must be an address and a port"),
        (line(**{**JOIN, "launcher": ["10.0.0.1", True]}), "'launcher' must be an address and a port"),
        (line(**{**JOIN, "launcher": ["10.0.0.1", 0]}), "'launcher' must be an address and a port"),
        (line(**{**JOIN, "job": ""}), "'job' must be a name"),
        (line(**{**JOIN, "host": "a\nb"}), "'host' must be a name"),
        (line(do="pace", heartbeat_s=1, figures_every=0), "'figures_every' must be a whole number from 1"),
    ],
)
def test_a_bad_order_is_refused_in_one_line_that_says_what_is_wrong(text: bytes | None, problem: str) -> None:
    with pytest.raises(OrderError) as refusal:
        parse(text)
    assert problem in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        b'{"do": "start", "env": {"TOKEN": "hunter2"',
        start(env={"TOKEN": f"{SECRET}\0"}),
        start(env={"TOKEN": {"x": SECRET}}),
        start(argv=[SECRET, 1]),
        line(do="start", slot=SECRET),
        line(do=SECRET),
    ],
)
def test_no_value_of_a_bad_order_is_repeated(text: bytes) -> None:
    with pytest.raises(OrderError) as refusal:
        parse(text)
    assert SECRET not in str(refusal.value)


def test_a_refusal_names_the_slot_as_soon_as_it_is_known() -> None:
    with pytest.raises(OrderError) as refusal:
        parse(line(do="start", slot=7))
    assert refusal.value.slot == 7


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_names = st.sampled_from(["do", "slot", "argv", "env", "cwd", "grace_s", "commits", "output"])
_kinds = st.sampled_from(["start", "stop", "forget", "finish"])


@given(st.dictionaries(_names, _values), _kinds, st.integers(-1, 1025))
def test_no_object_does_anything_but_be_read_or_be_refused(entry: dict[str, Any], kind: str, slot: int) -> None:
    for order in (entry, {**entry, "do": kind}, {**entry, "do": kind, "slot": slot, "argv": ["true"]}):
        try:
            read = parse(json.dumps(order).encode())
        except OrderError as refusal:
            assert "\n" not in str(refusal)  # noqa: PT017 - most are refused, some are not
        else:
            assert isinstance(read, Start | Stop | Forget | Finish)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_be_refused(data: bytes) -> None:
    with pytest.raises(OrderError):
        parse(data)
