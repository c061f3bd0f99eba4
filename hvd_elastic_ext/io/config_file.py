"""Reads a YAML or TOML file of options. The only importer of yaml and tomllib."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from hvd_elastic_ext.core.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPECTED: Final = "name a YAML file, or a TOML file whose name ends in .toml"

_SAFE: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader written in C, eight times as fast, if PyYAML has it."""

YAMLError = yaml.YAMLError
"""The error of any YAML reader, Horovod's own included, for an invalid file."""


def to_yaml(document: Mapping[str, Any]) -> str:
    """Return a document as YAML, with its keys in their order."""
    return str(yaml.safe_dump(dict(document), sort_keys=False))


def to_documents(whole: Sequence[Mapping[str, Any]]) -> str:
    """Return several documents as one text, without anchors and wrapped lines."""
    return "---\n".join(
        yaml.dump(dict(each), Dumper=_WithoutAnchors, sort_keys=False, width=1 << 20, allow_unicode=True)
        for each in whole
    )


class _WithoutAnchors(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def documents(text: str, *, where: str) -> list[dict[str, Any]]:
    """Return all documents of a text, without empty ones. Raises :class:`UsageError` with ``where``."""
    try:
        found = [each for each in yaml.load_all(text, Loader=_SAFE) if each is not None]
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: {' '.join(str(error).split())}") from None
    if not all(isinstance(each, dict) for each in found):
        raise UsageError(f"{where}: each document is one object with kind and apiVersion")
    return found


def read_config(path: Path, *, option: str = "--config") -> Mapping[str, Any]:
    """Read ``path``, TOML by its suffix, else YAML: one flat table of options. ``option``: the option that named it.

    Raises :class:`UsageError`, which names the file and, if possible, the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be read: {error.strerror}; {EXPECTED}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{option} {path} cannot be read: {error}; {EXPECTED}") from None
    except (yaml.YAMLError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{option} {path}: {' '.join(str(error).split())}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UsageError(f"{option} {path} holds a {type(document).__name__}; write one table of names and values")
    return document
