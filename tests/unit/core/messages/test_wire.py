"""Frames come out whole or not at all, whatever the network or a stranger does to the bytes."""

from __future__ import annotations

import hmac
import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.messages import wire
from hvd_elastic_ext.core.messages.wire import AgentWire, LauncherWire, Opener, Sealer, WireError

KEY = bytes(range(32))
OTHER_KEY = bytes(32)
SECRET = "hunter2"

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
messages = st.lists(st.dictionaries(st.text(max_size=8), plain, max_size=4), min_size=1, max_size=4)


def sealed(*several, key=KEY, direction=b"a"):
    sealer = Sealer(key, direction)
    return [sealer.seal(message) for message in several]


def framed(payload, *, sequence=0):
    """A frame that is rightly signed, whatever it holds."""
    mac = hmac.digest(KEY, b"a" + sequence.to_bytes(8, "big") + payload, "sha256")
    return (len(mac) + len(payload)).to_bytes(4, "big") + mac + payload


def opened(data):
    return Opener(KEY, b"a").feed(data)


def met(key=KEY, agent_key=None):
    """Both ends of a connection that have greeted."""
    launcher, agent = LauncherWire(key), AgentWire(agent_key or key)
    assert agent.feed(launcher.greeting) == []
    assert agent.ready
    return launcher, agent


@given(messages, st.data())
def test_any_split_of_the_bytes_gives_the_same_messages(several, data):
    stream = b"".join(sealed(*several))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    opener, seen = Opener(KEY, b"a"), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        seen += opener.feed(stream[start:end])
    assert seen == several


@given(messages, st.data())
def test_no_flipped_bit_is_taken_for_a_message(several, data):
    frames = sealed(*several)
    stream = bytearray(b"".join(frames))
    bit = data.draw(st.integers(0, 8 * len(stream) - 1))
    stream[bit // 8] ^= 1 << bit % 8
    opener, seen = Opener(KEY, b"a"), []
    try:
        for byte in stream:
            seen += opener.feed(bytes([byte]))
    except WireError:
        pass
    else:  # a length that became larger: the rest of it never comes
        assert len(seen) < len(several)
    hit = 0
    while bit // 8 >= sum(map(len, frames[: hit + 1])):
        hit += 1
    assert seen == several[:hit]


@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(lambda a, b, c: [a, a], id="replayed"),
        pytest.param(lambda a, b, c: [b, a], id="reordered"),
        pytest.param(lambda a, b, c: [a, c], id="left out"),
        pytest.param(lambda a, b, c: [a[:-1], b], id="cut short"),
    ],
)
def test_a_stream_that_is_not_what_was_sent_is_refused(tamper):
    frames = tamper(*sealed({"n": 0}, {"n": 1}, {"n": 2}))
    with pytest.raises(WireError, match="replayed"):
        opened(b"".join(frames))


def test_a_frame_is_signed_as_rfc_2104_has_it():
    key, payload = bytes(range(32)), b'{"event":"beats"}'
    frame = Sealer(key, b"a").seal({"event": "beats"})
    assert frame[4:36] == hmac.digest(key, b"a" + bytes(8) + payload, "sha256")
    assert frame[36:] == payload


def test_a_frame_that_is_sent_back_to_its_sender_is_refused():
    with pytest.raises(WireError, match="not signed"):
        opened(sealed({}, direction=b"l")[0])


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"[1]", "not an object"),
        (b'"x"', "not an object"),
        (b"", "does not hold JSON"),
        (b"{", "does not hold JSON"),
        (b'{"a":NaN}', "does not hold JSON"),
        (b'{"a":-Infinity}', "does not hold JSON"),
        (b'{"a":1e999}', "does not hold JSON"),
        ('{"a":"é"}'.encode(), "does not hold JSON"),
        (b'{"a":' + b"[" * 30000 + b"]" * 30000 + b"}", "does not hold JSON"),
        (b'{"a":' * 10000 + b"1" + b"}" * 10000, "does not hold JSON"),
        (b'{"a":' + b"9" * 50000 + b"}", "does not hold JSON"),
    ],
)
def test_what_is_signed_and_still_no_message_is_refused(payload, why):
    with pytest.raises(WireError, match=why):
        opened(framed(payload))


def test_a_length_too_large_is_refused_before_anything_of_it_is_kept():
    with pytest.raises(WireError, match="too large"):
        opened((wire.MAX_FIRST + 1).to_bytes(4, "big"))
    opener = Opener(KEY, b"a")
    opener.feed(sealed({})[0])
    opener.feed((wire.MAX_FRAME).to_bytes(4, "big"))
    opener = Opener(KEY, b"a")
    with pytest.raises(WireError, match="too large"):
        opener.feed(sealed({})[0] + (wire.MAX_FRAME + 1).to_bytes(4, "big"))
    with pytest.raises(WireError, match="too short"):
        opened((31).to_bytes(4, "big"))


def test_a_first_message_is_small_and_a_later_one_may_be_large():
    large = {"body": "x" * (7 << 20)}
    sealer = Sealer(KEY, b"a")
    with pytest.raises(WireError, match="limit is 65536"):
        sealer.seal(large)
    opener = Opener(KEY, b"a")
    assert opener.feed(sealer.seal({}) + sealer.seal(large)) == [{}, large]
    with pytest.raises(WireError, match="limit is 8388608"):
        sealer.seal({"body": "x" * (8 << 20)})


def test_what_is_no_json_cannot_be_sent_and_costs_no_number():
    sealer, opener = Sealer(KEY, b"a"), Opener(KEY, b"a")
    nested = []
    for _ in range(100_000):
        nested = [nested]
    for value in (math.nan, math.inf, b"bytes", object(), {1, 2}, nested):
        with pytest.raises(WireError, match="cannot be sent"):
            sealer.seal({"secret": value})
    assert opener.feed(sealer.seal({"n": 1})) == [{"n": 1}]


def test_letters_of_any_kind_and_bytes_that_are_none_arrive():
    message = {"text": "é 漢 \udcff \0"}
    frame = sealed(message)[0]
    assert frame[36:].isascii()
    assert opened(frame) == [message]


def test_two_ends_meet_and_talk():
    launcher, agent = met()
    assert not launcher.ready
    with pytest.raises(WireError, match="before"):
        launcher.seal({})
    hello = agent.seal({"event": "hello"})
    assert launcher.feed(hello[:10]) == []
    assert launcher.feed(hello[10:]) == [{"event": "hello"}]
    assert agent.feed(launcher.seal({"do": "welcome"})) == [{"do": "welcome"}]
    assert launcher.feed(agent.seal({"n": 1}) + agent.seal({"n": 2})) == [{"n": 1}, {"n": 2}]
    assert agent.feed(launcher.seal({"n": 3})) == [{"n": 3}]


@given(st.lists(st.integers(1, 40), max_size=8))
def test_greetings_may_come_in_pieces_and_with_frames_behind(sizes):
    launcher, agent = LauncherWire(KEY), AgentWire(KEY)
    stream, ready = launcher.greeting, []
    for size in [*sizes, len(stream)]:
        agent.feed(stream[:size])
        stream = stream[size:]
        ready.append(agent.ready)
    assert ready == sorted(ready)
    assert agent.ready
    stream, seen = agent.seal({"n": 1}) + agent.seal({"n": 2}), []
    for size in [*sizes, len(stream)]:
        seen += launcher.feed(stream[:size])
        stream = stream[size:]
    assert seen == [{"n": 1}, {"n": 2}]


def test_an_agent_of_another_job_is_refused():
    launcher, agent = met(agent_key=OTHER_KEY)
    with pytest.raises(WireError, match="this job's key"):
        launcher.feed(agent.seal({"event": "hello"}))


def test_a_launcher_of_another_job_is_refused():
    _, agent = met()
    impostor = LauncherWire(OTHER_KEY)
    agent.seal({})
    impostor.feed(agent._nonce)
    with pytest.raises(WireError, match="this job's key"):
        agent.feed(impostor.seal({"do": "welcome"}))


def test_what_was_said_on_one_connection_is_refused_on_the_next():
    launcher, agent = met()
    said = agent.seal({"event": "hello"})
    assert launcher.feed(said)
    with pytest.raises(WireError, match="replayed"):
        LauncherWire(KEY).feed(said)


def test_a_launcher_hears_nothing_of_its_own_back():
    launcher = LauncherWire(KEY, nonce=bytes(32))
    launcher.feed(bytes(32))
    own = launcher.seal({"do": "stop"})
    with pytest.raises(WireError, match="not signed"):
        launcher.feed(own)


@pytest.mark.parametrize("first", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\0", b"hvd-elastic-ctl\x02" + bytes(32)])
def test_an_agent_hangs_up_on_what_is_no_launcher_of_its_version(first):
    with pytest.raises(WireError, match="not a launcher of this version"):
        AgentWire(KEY).feed(first)


def test_after_an_error_nothing_more_is_believed():
    launcher, agent = met()
    good = agent.seal({"n": 1})
    with pytest.raises(WireError) as first:
        launcher.feed(good[:-1] + b"?")
    with pytest.raises(WireError) as second:
        launcher.feed(agent.seal({"n": 2}))
    assert str(first.value) == str(second.value)


def test_a_key_is_32_bytes_and_never_quoted():
    assert wire.key_from_hex(KEY.hex()) == KEY
    for wrong in (SECRET, "", "00", None, 7, KEY):
        with pytest.raises(WireError) as error:
            wire.key_from_hex(wrong)
        assert SECRET not in str(error.value)
    with pytest.raises(WireError):
        LauncherWire(b"")


def test_errors_quote_nothing_of_what_was_sent():
    with pytest.raises(WireError) as error:
        opened(framed(json.dumps({"a": SECRET}).encode() + b"!"))
    assert SECRET not in str(error.value)
    assert "\n" not in str(error.value)


def test_it_loads_nothing_that_takes_long():
    slow = ("dataclasses", "typing_extensions", "inspect", "logging", "pathlib", "asyncio", "random", "ssl", "socket")
    code = f"import sys, hvd_elastic_ext.core.messages.wire; print([name for name in {slow} if name in sys.modules])"
    # Without site: what an editable install loads there is not ours.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stderr
