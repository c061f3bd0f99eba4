""""""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.checkpoint.format import checksums
from hvd_elastic_ext.checkpoint.format import manifest as manifests
from hvd_elastic_ext.checkpoint.format.manifest import (
    CallResult,
    File,
    Manifest,
    age,
    identity_of,
    is_file_name,
    name_of,
)
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.errors import Permanent
from tests.support.checkpoints import held

FILES = (
    File("layout", 0, "layout-00000-0a.json", 9, ("0123456789abcdef",)),
    File("local", 1, "local-00001-0b.json", 0, ()),
    File("shard", 0, "shard-00000-of-00002-0c.safetensors", checksums.BLOCK + 1, ("0" * 16, "1" * 16)),
    File("shard", 1, "shard-00001-of-00002-0d.safetensors", 5, ("f" * 16,)),
    File("tree", 0, "tree-00000-0e.json", 5, ("2" * 16,)),
)
MADE = Manifest(held().record, 2, 2, FILES, {"job": "digits"})


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert manifests.decode(manifests.encode(MADE)) == MADE
    assert MADE.bytes == checksums.BLOCK + 20


def test_the_call_in_progress_is_kept_and_unknown_in_a_manifest_of_a_version_that_had_none() -> None:
    made = replace(MADE, record=MADE.record._replace(call=3))
    assert manifests.decode(manifests.encode(made)).record.call == 3
    assert manifests.decode(sealed(lambda told: told["record"].pop("call"))).record.call == 0


RESULTS = tuple(
    CallResult(File("result", call, f"result-{call:05d}-0a-0b.bin", 7, ("3" * 16,)), 10 * call, call, 2**64 - 1 - call)
    for call in range(3)
)
OF_CALL_3 = replace(MADE, record=MADE.record._replace(call=3), results=RESULTS)


def test_the_results_of_earlier_calls_are_kept_and_none_in_a_manifest_of_a_version_that_had_none() -> None:
    assert manifests.decode(manifests.encode(OF_CALL_3)) == OF_CALL_3
    assert OF_CALL_3.bytes == MADE.bytes, "the files are not its own"
    assert manifests.decode(sealed(lambda told: told.pop("results"))) == MADE


def test_a_program_that_does_not_know_calls_refuses_a_checkpoint_of_a_later_call_and_reads_one_of_the_first() -> None:
    """It reads format 2 only, and would continue the first call with the State of another."""
    versions = [
        json.loads(manifests.encode(replace(OF_CALL_3, record=MADE.record._replace(call=call), results=RESULTS[:call])))
        for call in (0, 1, 2, 3)
    ]
    assert [told["version"] for told in versions] == [2, 2, 3, 3]


@pytest.mark.parametrize(
    ("call", "count", "lacks"),
    [
        (0, 0, ""), (1, 0, ""), (1, 1, ""), (2, 2, ""), (3, 3, ""),
        (2, 0, "it is of call 2, and what collectives returned before the first call was not kept"),
        (3, 2, "it is of call 3, and the result of call 2 was not kept"),
    ],
)  # fmt: skip
def test_a_job_can_resume_if_every_call_before_has_its_result(call: int, count: int, lacks: str) -> None:
    made = replace(MADE, record=MADE.record._replace(call=call), results=RESULTS[:count])
    assert manifests.decode(manifests.encode(made)).lacks == lacks


def test_it_can_be_read_by_people() -> None:
    told = json.loads(manifests.encode(MADE))
    assert (told["format"], told["version"], told["world"]) == ("hvd-elastic checkpoint", 2, 2)
    assert told["record"]["identity"] == [7, 0, 1, 1]
    assert told["files"][0]["name"] == "layout-00000-0a.json"


def test_a_manifest_that_is_cut_off_anywhere_is_refused() -> None:
    whole = manifests.encode(MADE)
    for length in range(len(whole)):
        with pytest.raises(ValueError, match=r"\w"):
            manifests.decode(whole[:length])


def test_a_changed_byte_is_found() -> None:
    whole = manifests.encode(MADE)
    for at, byte in enumerate(whole):
        if chr(byte).isdigit():
            changed = whole[:at] + (b"8" if byte != ord("8") else b"9") + whole[at + 1 :]
            with pytest.raises(ValueError, match=r"\w"):
                manifests.decode(changed)


def sealed(change: Callable[[dict[str, Any]], object], made: Manifest = MADE) -> bytes:
    """A manifest with something else in it, and the right checksum of its own: made up, not damaged."""
    told = json.loads(manifests.encode(made))
    del told["seal"]
    change(told)
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return json.dumps({**told, "seal": checksums.digest([text.encode()])}).encode()


def test_the_seal_of_the_tests_is_the_right_one() -> None:
    assert manifests.decode(sealed(lambda told: None)) == MADE
    earlier = sealed(lambda told: told.update(score=0.25))  # a field of programs before
    assert manifests.decode(earlier) == MADE


WRONG: dict[str, Callable[[dict[str, Any]], object]] = {
    "an earlier format": lambda told: told.update(version=1),
    "a later format": lambda told: told.update(version=4),
    "no format": lambda told: told.update(format="tar"),
    "another checksum": lambda told: told.update(checksum="md5"),
    "other blocks": lambda told: told.update(block=1),
    "a path out": lambda told: told["files"][0].update(name="../../etc/passwd"),
    "an absolute path": lambda told: told["files"][0].update(name="/etc/passwd"),
    "no name": lambda told: told["files"][0].update(name=None),
    "a name twice": lambda told: told["files"][0].update(name=FILES[1].name),
    "an unknown kind": lambda told: told["files"][0].update(kind="code"),
    "a negative length": lambda told: told["files"][0].update(bytes=-1),
    "a length beyond its checksums": lambda told: told["files"][0].update(bytes=1 << 60),
    "a length beyond any": lambda told: told["files"][0].update(bytes=1 << 70),
    "a length that is none": lambda told: told["files"][0].update(bytes=True),
    "a checksum that is none": lambda told: told["files"][0].update(checksums=[7]),
    "checksums that are none": lambda told: told["files"][0].update(checksums=7),
    "a part missing": lambda told: told["files"].pop(2),
    "a part twice": lambda told: told["files"].append({**told["files"][2], "name": "again"}),
    "a rank twice": lambda told: told["files"].append({**told["files"][1], "name": "again"}),
    "no layout": lambda told: told["files"].pop(0),
    "no tree": lambda told: told["files"].pop(4),
    "no parts": lambda told: told.update(parts=0),
    "parts without end": lambda told: told.update(parts=1 << 60),
    "no files": lambda told: told.pop("files"),
    "files that are none": lambda told: told.update(files=[3]),
    "facts that are none": lambda told: told.update(facts=[]),
    "no record": lambda told: told.update(record=None),
    "a record without a step": lambda told: told["record"].pop("step"),
    "a call that is text": lambda told: told["record"].update(call="2"),
    "an identity that is none": lambda told: told["record"].update(identity=[1, 2, 3]),
    "more loose than there is": lambda told: told["record"].update(loose=1 << 40),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_was_made_up_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"it|there|is not there|its|the|not a count"):
        manifests.decode(sealed(WRONG[name]))


WRONG_RESULTS: dict[str, Callable[[list[Any]], object]] = {
    "one missing": lambda told: told.pop(1),
    "the first one missing": lambda told: told.pop(0),
    "one twice": lambda told: told.insert(1, told[0]),
    "one more than there were calls": lambda told: told.append({**told[2], "file": {**told[2]["file"], "number": 3}}),
    "a path out": lambda told: told[0]["file"].update(name="../manifest.json"),
    "another kind": lambda told: told[0]["file"].update(kind="shard"),
    "a length beyond its checksums": lambda told: told[0]["file"].update(bytes=1 << 60),
    "a digest that is not hexadecimal": lambda told: told[0].update(digest="-0000000000000a"),
    "no step": lambda told: told[0].update(step=None),
    "more than there is": lambda told: told[0].update(more=1),
    "a result that is a number": lambda told: told.insert(0, 3),
}


@pytest.mark.parametrize("name", WRONG_RESULTS)
def test_results_that_were_made_up_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"it is not|there are the results|not a count"):
        manifests.decode(sealed(lambda told: WRONG_RESULTS[name](told["results"]), OF_CALL_3))


@given(st.binary(max_size=300) | st.sampled_from([b"[" * 100_000, b"9" * 10_000, b'{"a":' * 50_000, b"NaN"]))
def test_any_bytes_are_a_manifest_or_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        manifests.decode(data)


NINE = tuple(replace(FILES[2], number=number, name=f"shard-{number}") for number in range(9))


@pytest.mark.parametrize(
    ("files", "parts", "missing"),
    [
        (FILES, 2, None),
        (FILES[:3] + FILES[4:], 2, "there are the parts 0 of 2"),
        (FILES[:2], 2, "there are the parts none of 2"),
        (NINE[:8], 12, "there are the parts 0, 1, 2, 3, 4, 5, 6, 7 of 12"),
        (NINE, 12, "there are the parts 0, 1, 2, 3, 4, 5, 6, 7 … of 12"),
        (FILES[1:], 2, "the layout is not there, or twice"),
        (FILES[:4], 2, "the tree is not there, or twice"),
        ((*FILES, replace(FILES[1], name="again")), 2, "it has a file twice"),
    ],
)
def test_what_a_checkpoint_lacks_is_named(files: tuple[File, ...], parts: int, missing: str | None) -> None:
    assert manifests.incomplete(files, parts) == missing


def test_facts_that_are_no_json_are_not_written() -> None:
    for facts in ({"a": float("nan")}, {"a": object()}):
        with pytest.raises((ValueError, TypeError)):
            manifests.encode(replace(MADE, facts=facts))


# --- names


counts = st.integers(0, (1 << 63) - 1)
identities = st.builds(Identity, counts, counts, counts, counts)
small = st.integers(0, 99_999)
usual = st.builds(Identity, counts, small, small, small)


@given(identities)
def test_a_name_tells_its_identity(identity: Identity) -> None:
    assert identity_of(name_of(identity)) == identity
    assert is_file_name(name_of(identity))


@given(st.lists(usual, min_size=2))
def test_names_in_the_order_of_text_are_in_the_order_of_age(many: list[Identity]) -> None:
    assert sorted(map(name_of, many)) == [name_of(identity) for identity in sorted(many, key=age)]


@pytest.mark.parametrize(
    "name",
    [
        "", "..", "manifest.json", "000001-000002-000000003", "000001-000002-000000003-75bcd15",
        "000001-000002-000000003-00000000075BCD15", "0000001-000002-000000003-00000000075bcd15",
        "000001-000002-000000003-ffffffffffffffff", "../01-000002-000000003-00000000075bcd15",
        "٠٠٠٠٠١-000002-000000003-00000000075bcd15", "000001-000002-000000003-00000000075bcd15\n",
    ],
)  # fmt: skip
def test_a_name_that_no_checkpoint_has_gives_no_identity(name: str) -> None:
    assert identity_of(name) is None


@given(st.text())
def test_any_text_is_a_name_or_none(text: str) -> None:
    identity = identity_of(text)
    assert identity is None or name_of(identity) == text


@pytest.mark.parametrize("identity", [Identity(-1, 0, 0, 0), Identity(1, 0, 0, 1 << 63)])
def test_what_is_no_identity_has_no_name(identity: Identity) -> None:
    with pytest.raises(Permanent, match="not a commit's identity"):
        name_of(identity)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/passwd", ".hidden", "a\0b", "a" * 201, 7, None])
def test_a_path_is_no_file_name(name: object) -> None:
    assert not is_file_name(name)
