"""What a checkpoint and its files are called, and the manifest that completes it.

A checkpoint's name contains the commit's identity, so that its age needs no clock. The manifest is the small file that
is written last, and names every other file. It is JSON, and contains a checksum of its own: so a partially written
manifest is invalid on storage that cannot replace a file atomically.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from hvd_elastic_ext.checkpoint.format import checksums
from hvd_elastic_ext.core.call_results import result_of
from hvd_elastic_ext.core.commit_record import Identity, Record
from hvd_elastic_ext.core.errors import Permanent

# --- names


MANIFEST: Final = "manifest.json"
"""The file that completes a checkpoint."""

_LIMIT: Final = 1 << 63
_NAME: Final = re.compile(r"(\d{6,19})-(\d{6,19})-(\d{9,19})-([0-9a-f]{16})")
_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

Age = tuple[int, int, int, int]


def name_of(identity: Identity) -> str:
    """``000001-000004-000000120-<lineage>``: incarnation, generation, number. Sorted as text, the newest comes last.

    (This holds for up to a million launchers; :func:`age` is always right.)
    """
    if not all(0 <= part < _LIMIT for part in identity):
        raise Permanent(f"{tuple(identity)} is not a commit's identity")
    lineage, incarnation, generation, number = identity
    return f"{incarnation:06d}-{generation:06d}-{number:09d}-{lineage:016x}"


def identity_of(name: str) -> Identity | None:
    """Return the identity in ``name``; None for a name that :func:`name_of` does not make."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    incarnation, generation, number = (int(match[place]) for place in (1, 2, 3))
    identity = Identity(int(match[4], 16), incarnation, generation, number)
    return identity if max(identity) < _LIMIT and name_of(identity) == name else None


def age(identity: Identity) -> Age:
    """Sort key: greater for the newer commit. The lineage, a random number, only decides between equally new
    commits."""
    return identity.incarnation, identity.generation, identity.number, identity.lineage


def is_file_name(text: object) -> bool:
    """Whether a name is valid for a file in a checkpoint's folder: no path that leads out of it."""
    return isinstance(text, str) and _FILE.fullmatch(text) is not None


# --- the manifest


FORMAT: Final = "hvd-elastic checkpoint"
VERSION: Final = 2
VERSION_OF_CALLS: Final = 3
"""Version of the manifest of a checkpoint in call 2 or a later one. A program that does not know calls refuses it: that
program would continue the first call with the State of a later one."""
LIMIT: Final = 64 << 20
"""Most bytes of a manifest."""

SHARD: Final = "shard"
"""Kind of a file with the bytes of tensors. ``number``: the part."""
LAYOUT: Final = "layout"
"""Kind of the file with the layout of the tensors, byte by byte as in the commit."""
TREE: Final = "tree"
"""Kind of the file with the data that all ranks share besides tensors, as lines of JSON."""
LOCAL: Final = "local"
"""Kind of a file with a rank's own tree. ``number``: the rank."""
RESULT: Final = "result"
"""Kind of a file with the result of a training call (``result_file.py``). ``number``: the call."""

RESULTS: Final = "results"
"""The folder of these files: all checkpoints of a store share them."""

_LENGTHS: Final = ("step", "loose", "data", "layout", "tree", "local")
_MOST: Final = 1 << 62
_DIGEST: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class File:
    """A file of a checkpoint: its length in bytes, and a checksum for each block."""

    kind: str
    number: int
    name: str
    bytes: int
    checksums: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a training call that was over, as it is on storage. ``step``, ``commit`` and ``digest`` are those
    of its header in a slot's past (``core/call_results.py``)."""

    file: File
    """Its file in :data:`RESULTS`."""
    step: int
    commit: int
    digest: int

    @property
    def call(self) -> int:
        """The number of the call."""
        return self.file.number


@dataclass(frozen=True)
class Manifest:
    """What a sealed checkpoint consists of."""

    record: Record
    """That of the commit, with the lengths of its trees in memory when it was written."""
    world: int
    """Number of ranks."""
    parts: int
    """Number of shards."""
    files: tuple[File, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Data of the caller."""
    results: tuple[CallResult, ...] = ()
    """Those of the calls 0, 1, … before the record's call, until the first one that was not kept."""

    @property
    def lacks(self) -> str:
        """Why no job can resume from it, although it is complete; "" if one can."""
        call, known = self.record.call, len(self.results)
        return f"it is of call {call}, and {result_of(known)} was not kept" if known < call > 1 else ""

    @property
    def bytes(self) -> int:
        """Total bytes of its own files, without the manifest."""
        return sum(file.bytes for file in self.files)

    def file(self, kind: str, number: int = 0) -> File | None:
        """Return the file of this kind and number; None if the checkpoint has none."""
        return next((file for file in self.files if (file.kind, file.number) == (kind, number)), None)


def record_to_json(record: Record) -> dict[str, Any]:
    """Return the JSON form of a record for manifests and orders, without the source of the commit."""
    entry: dict[str, Any] = {"identity": list(record.identity)}
    return entry | {name: getattr(record, name) for name in (*_LENGTHS, "call")}


def record_from_json(entry: Any) -> Record:
    """Read a record; other keys are ignored. Raises ``ValueError`` for an invalid record."""
    _demand(isinstance(entry, dict), "a record")
    identity = entry["identity"]
    _demand(isinstance(identity, list) and len(identity) == 4, "an identity")
    step, loose, data, layout, tree, local = (_count(entry[name]) for name in _LENGTHS)
    _demand(loose <= data, "a record")
    call = _count(entry.get("call", 0))  # manifests of earlier versions have none
    return Record(Identity(*map(_count, identity)), step, loose, data, layout, tree, local, call=call)


def result_to_json(result: CallResult) -> dict[str, Any]:
    """Return the JSON form of a result for manifests and answers."""
    return {**asdict(result), "digest": f"{result.digest:016x}"}


def result_from_json(entry: Any) -> CallResult:
    """Read a result entry. Raises ``ValueError`` for an invalid one."""
    _demand(isinstance(entry, dict) and entry.keys() == set(CallResult.__dataclass_fields__), "a result")
    _demand(isinstance(entry["digest"], str) and _DIGEST.fullmatch(entry["digest"]) is not None, "a digest")
    file = _file(entry["file"], (RESULT,))
    return CallResult(file, _count(entry["step"]), _count(entry["commit"]), int(entry["digest"], 16))


def file_from_json(entry: Any) -> File:
    """Read the entry of a checkpoint's own file. Raises ``ValueError`` for an invalid one."""
    return _file(entry, (SHARD, LAYOUT, TREE, LOCAL))


def _file(entry: Any, kinds: Collection[str]) -> File:
    _demand(isinstance(entry, dict) and entry.keys() == set(File.__dataclass_fields__), "a file")
    file = File(
        entry["kind"], _count(entry["number"]), entry["name"], _count(entry["bytes"]), tuple(entry["checksums"])
    )
    _demand(file.kind in kinds, "a kind of file")
    _demand(is_file_name(file.name), "a file's name")
    _demand(len(file.checksums) == checksums.count(file.bytes), "a file with a checksum for each block")
    _demand(all(isinstance(one, str) and _DIGEST.fullmatch(one) for one in file.checksums), "a checksum")
    return file


def encode(manifest: Manifest) -> bytes:
    """Write a manifest."""
    plain = {
        "format": FORMAT,
        "version": VERSION_OF_CALLS if manifest.record.call > 1 else VERSION,
        "record": record_to_json(manifest.record),
        "world": manifest.world,
        "parts": manifest.parts,
        "facts": dict(manifest.facts),
        "checksum": checksums.ALGORITHM,
        "block": checksums.BLOCK,
        "files": [asdict(file) for file in manifest.files],
        "results": [result_to_json(result) for result in manifest.results],
    }
    return json.dumps({**plain, "seal": _seal(plain)}, indent=1, allow_nan=False).encode()


def decode(data: bytes) -> Manifest:
    """Read and verify a manifest. Raises ``ValueError`` that says what is wrong, without the file's name."""
    try:
        plain = json.loads(data)
        _demand(isinstance(plain, dict) and plain.get("format") == FORMAT, "a manifest")
        if plain.get("version") not in (VERSION, VERSION_OF_CALLS):
            raise ValueError(
                f"it is of format {str(plain.get('version'))[:20]}, and this program reads formats {VERSION} and "
                f"{VERSION_OF_CALLS} only; "
                "resume with the program that wrote it, or export it there and load the export"
            )
        seal = plain.pop("seal", None)
        _demand(seal == _seal(plain), "whole: its own checksum is wrong")
        _demand(plain["checksum"] == checksums.ALGORITHM and plain["block"] == checksums.BLOCK, "of known checksums")
        return _checked(plain)
    except (KeyError, TypeError, AttributeError, RecursionError, MemoryError, OverflowError) as error:
        raise ValueError(f"it is not a manifest ({type(error).__name__})") from None


def _checked(plain: Mapping[str, Any]) -> Manifest:
    files = tuple(map(file_from_json, plain["files"]))
    facts = plain["facts"]
    _demand(isinstance(facts, dict), "facts")
    results = tuple(map(result_from_json, plain.get("results", [])))  # manifests of earlier versions have none
    record = record_from_json(plain["record"])
    found = Manifest(record, _count(plain["world"]), _count(plain["parts"]), files, facts, results)
    problem = incomplete(files, found.parts) or wrong_results(results, record.call)
    if problem:
        raise ValueError(problem)
    return found


def incomplete(files: Sequence[File], parts: int) -> str | None:
    """Return what is missing, or present twice, in a checkpoint; None if it is complete."""
    shards = sorted(file.number for file in files if file.kind == SHARD)
    if not parts or len(shards) != parts or shards != list(range(parts)):
        return f"there are the parts {_few(shards)} of {parts}"
    for kind in (LAYOUT, TREE):
        if [file.number for file in files if file.kind == kind] != [0]:
            return f"the {kind} is not there, or twice"
    locals_ = [file.number for file in files if file.kind == LOCAL]
    if len(set(locals_)) != len(locals_) or len({file.name for file in files}) != len(files):
        return "it has a file twice"
    return None


def wrong_results(results: Sequence[CallResult], call: int) -> str | None:
    """Return what is wrong with the results of a checkpoint in ``call``; None if they are those of the first calls."""
    calls = [result.call for result in results]
    if calls == list(range(min(len(calls), call))):
        return None
    return f"there are the results of the calls {_few(calls)} before call {call}"


def _few(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "") if numbers else "none"


def _seal(plain: Mapping[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return checksums.digest([text.encode()])


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{str(value)[:40]!r} is not a count")
    return value


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"it is not {what}")
