"""Chooses the store that a path or a URL names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvd_elastic_ext.checkpoint.stores.local import LocalStore
from hvd_elastic_ext.checkpoint.stores.store import Store
from hvd_elastic_ext.core.errors import UsageError


def open_store(where: str, options: Mapping[str, Any] | None = None) -> Store:
    """Return the store at a path or a URL (``s3://bucket/folder``); ``options`` are fsspec's for that kind of URL.
    Raises :class:`UsageError` for a kind of URL without a driver.
    """
    if not where:
        raise UsageError("an empty path is no place for checkpoints; give a folder or a URL such as s3://bucket/folder")
    scheme, found, rest = where.partition("://")
    if not found:
        return LocalStore(Path(where))
    if scheme in ("file", "local"):
        return LocalStore(Path(rest))
    from hvd_elastic_ext.checkpoint.stores.fsspec_store import open_fsspec  # only this needs fsspec

    return open_fsspec(where, options or {})
