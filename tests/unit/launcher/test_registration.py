"""What a worker may register with the rendezvous server."""

import base64
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from horovod.runner.common.util import codec

from hvd_elastic_ext.launcher.horovod_rendezvous import read_registration


class Code:
    """Runs code when it is unpickled, as an attacker's would."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (exec, ("raise SystemExit('code was run')",))


def test_what_horovod_sends_is_read() -> None:
    entry = ({"lo": [("127.0.0.1", 4711)], "eth0": [("10.0.0.1", 4711), ("10.0.0.2", 4711)]}, b"key")
    assert read_registration(codec.dumps_base64(entry, to_ascii=False)) == entry


@pytest.mark.parametrize("entry", [Code(), ({"lo": [Code()]}, b"key"), (Code, b"key"), (print, b"")])
def test_code_is_refused_and_not_run(entry: object) -> None:
    with pytest.raises(ValueError, match="may not name"):
        read_registration(base64.b64encode(pickle.dumps(entry)))


@pytest.mark.parametrize(
    "entry",
    [
        *[None, (), ({}, "text"), ([], b"key"), ({1: []}, b"key"), ({"lo": [("a",)]}, b"k"), ({"lo": [(1, 2)]}, b"")],
        *[({"lo": 1}, b"k"), ({"lo": [("10.0.0.1", 0)]}, b"k"), ({"lo": [("10.0.0.1", 65536)]}, b"k")],
        ({"lo": [("a-name-to-be-resolved", 1)]}, b"k"),
    ],
)
def test_anything_of_another_shape_is_refused(entry: object) -> None:
    with pytest.raises(ValueError, match="not a registration"):
        read_registration(base64.b64encode(pickle.dumps(entry)))


@pytest.mark.parametrize("value", [b"", b"!", b"AAAA", base64.b64encode(b"\x80\x05."), b"A" * 70_000])
def test_bytes_that_are_no_registration_are_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a registration|more than"):
        read_registration(value)
