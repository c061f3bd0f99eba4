"""What is read: each target has inputs to begin with, its reader, and the errors that the reader says it raises."""

from __future__ import annotations

import base64
import collections
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy
import torch

from hvd_elastic_ext.agent import orders, ports
from hvd_elastic_ext.agent.orders import OrderError
from hvd_elastic_ext.checkpoint.format import checksums, shards, tensor_places
from hvd_elastic_ext.checkpoint.format import manifest as manifests
from hvd_elastic_ext.checkpoint.format.shards import Piece
from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.checkpoint.values.read import _MAKERS, plain, read
from hvd_elastic_ext.checkpoint.values.write import write
from hvd_elastic_ext.core import publication
from hvd_elastic_ext.core.errors import ElasticError
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.messages import wire
from hvd_elastic_ext.core.publication import Departure, Publication
from tests.support.checkpoints import held

KEY: Final = hashlib.sha256(b"fuzz").digest()
NONCE: Final = hashlib.sha256(b"nonce").digest()


@dataclass(frozen=True)
class Target:
    """``values``: what is put into its JSON besides the usual."""

    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    errors: tuple[type[BaseException], ...]
    values: tuple[Any, ...] = ()


def _in_pieces(feed: Callable[[bytes], object], data: bytes) -> None:
    size = max(1, len(data) // 7)
    for at in range(0, len(data), size):
        feed(data[at : at + size])


def _launcher_hears(data: bytes) -> None:
    _in_pieces(wire.LauncherWire(KEY, nonce=NONCE).feed, data)


def _agent_hears(data: bytes) -> None:
    _in_pieces(wire.AgentWire(KEY, nonce=NONCE).feed, data)


def _opened(data: bytes) -> None:
    """A frame of an agent that has the key, whatever it says."""
    keyed = hmac.new(KEY, digestmod="sha256")
    mac = wire._sign(keyed, wire.FROM_AGENT, 0, payload=data)
    wire.Opener(KEY, wire.FROM_AGENT).feed((len(mac) + len(data)).to_bytes(4, "big") + mac + data)


def _conversation() -> tuple[bytes, bytes]:
    """What an agent and a launcher say to each other."""
    launcher, agent = wire.LauncherWire(KEY, nonce=NONCE), wire.AgentWire(KEY, nonce=NONCE)
    greeting = launcher.greeting
    agent.feed(greeting)
    said = agent.seal({"host": "a", "do": "hello"}) + agent.seal({"event": "beat", "slots": [1, 2, 3]})
    launcher.feed(said)
    return said, greeting + launcher.seal({"do": "welcome", "incarnation": 1}) + launcher.seal(
        {"do": "stop", "slot": 0}
    )


def _state() -> dict[str, Any]:
    big = collections.OrderedDict(a=1)
    counts, table = collections.Counter("abca"), collections.defaultdict(list, {1: [2]})
    return {
        "list": list(range(50)),
        "tuple": (1, (2.5, None)),
        "set": {1, (2, 3)},
        "frozenset": frozenset({b"x"}),
        "bytes": b"abc",
        "numbers": [2 + 3j, 2**3000],
        "collections": [counts, collections.deque([1, 2], 5), table, big, big],
        "torch": [torch.Size([1, 2]), torch.device("cpu"), torch.float32, torch.ones(2), torch.eye(2).to_sparse()],
        "numpy": [numpy.arange(6).reshape(2, 3), numpy.float32(2.5), numpy.empty((0, 3))],
    }


_TENSORS: Final[list[torch.Tensor]] = []


def _tensor(index: int, kind: str) -> Any:
    return _TENSORS[index]


def _tree(data: bytes) -> None:
    trees.check(data)
    for text in trees.decode(data).values():
        read(text, _tensor)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


_GIVEN = (None, "x", [], [1, 2], {"a": 1}, ["builtins:eval", {}], ["|S9", [10**9]])
_ODD = tuple({tag: given} for tag in _MAKERS for given in _GIVEN)


def _sealed(data: bytes) -> None:
    """A manifest whose own checksum is right, whatever it says."""
    try:
        plain = json.loads(data)
        plain.pop("seal", None)
        told = json.dumps({**plain, "seal": manifests._seal(plain)}).encode()
    except (ValueError, AttributeError, TypeError, RecursionError):
        told = data
    manifests.decode(told)


_LAYOUT = json.dumps(
    [["float32", [2, 3], [3, 1], "cpu", 1], ["int64", [], [], "cpu", 0], ["bfloat16", [4], [1], "cuda:0", 1]]
).encode()
_PLACES = tensor_places.decode(_LAYOUT)


def _manifest() -> bytes:
    files = (
        manifests.File("layout", 0, "layout-00000-0a.json", 9, ("0123456789abcdef",)),
        manifests.File("shard", 0, "shard-00000-of-00002-0c.safetensors", checksums.BLOCK + 1, ("0" * 16, "1" * 16)),
        manifests.File("shard", 1, "shard-00001-of-00002-0d.safetensors", 5, ("f" * 16,)),
        manifests.File("tree", 0, "tree-00000-0e.json", 5, ("2" * 16,)),
    )
    return manifests.encode(manifests.Manifest(held().record, 2, 2, files, {"job": "digits"}))


def _header() -> bytes:
    pieces = [Piece(number, 0, place.length) for number, place in enumerate(_PLACES.all)]
    return shards.encode_header(pieces, _PLACES, {"step": "1"})[shards.HEADER_LENGTH.size :]


def _order(data: bytes) -> None:
    entry = orders.entry_of(data)
    orders.read_welcome(entry) if entry.get("do") == "welcome" else orders.read(entry)


def _targets() -> dict[str, Target]:
    agent, launcher = _conversation()
    texts = {name: write(value, _TENSORS) for name, value in _state().items()}
    tree, lines = trees.encode(texts), tuple(text.encode() for text in texts.values())
    hosts = HostSet.of({"a": 2, "host-1.example": 4})
    pushed = publication.to_json(Publication("x", 3, hosts, (Departure("b", "spot", 12.5),)))
    line = {"do": "start", "slot": 0, "argv": ["python", "x.py"], "env": {"A": "1"}}
    return {
        "frames": Target(_launcher_hears, (agent,), (wire.WireError,)),
        "frames-to-agent": Target(_agent_hears, (launcher,), (wire.WireError,)),
        "frames-signed": Target(_opened, (b'{"event":"beat","slots":[1,2]}',), (wire.WireError,)),
        "rendezvous-proxy": Target(
            lambda data: _in_pieces(ports.Reader().feed, data),
            (
                b"PUT /global/0%2f HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-length: 3\r\n\r\nabc",
                b"GET / HTTP/1.1\r\n\r\n",
            ),
            (ports.BadRequest,),
        ),
        "hosts": Target(
            lambda data: publication.parse_hosts_text(_text(data), where="hosts", default_slots=1),
            (b"a:2\n# comment\nhost-1.example:4\n\n10.0.0.1:1\n", b"b\n"),
            (ElasticError,),
        ),
        "hosts-option": Target(
            lambda data: publication.parse_hosts_option(_text(data), where="--hosts"), (b"a:2,b:4",), (ElasticError,)
        ),
        "push": Target(lambda data: publication.from_json(data, where="push"), (pushed.encode(),), (ElasticError,)),
        "manifest": Target(manifests.decode, (_manifest(),), (ValueError,)),
        "manifest-sealed": Target(_sealed, (_manifest(),), (ValueError,)),
        "layout": Target(tensor_places.decode, (_LAYOUT,), (ElasticError,)),
        "header": Target(lambda data: list(shards.decode_header(data, _PLACES)), (_header(),), (ValueError,)),
        "tree": Target(_tree, (tree,), (ElasticError,)),
        "resumed": Target(lambda data: read(_text(data), _tensor), lines, (ElasticError,), _ODD),
        "exported": Target(lambda data: plain(_text(data), _tensor), lines, (ElasticError,), _ODD),
        "orders": Target(
            _order,
            (
                json.dumps(line).encode(),
                b'{"do":"answer","slot":0,"id":1,"status":200,"body":"' + base64.b64encode(b"abc") + b'"}',
                b'{"do":"welcome","incarnation":1,"heartbeat_s":1}',
                b'{"do":"tell","to":{"0":1},"message":{"a":1}}',
            ),
            (OrderError,),
        ),
    }


TARGETS: Final = _targets()
