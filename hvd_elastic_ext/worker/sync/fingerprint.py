"""One hash for a tree of state, the same wherever the same state is."""

from __future__ import annotations

import hashlib
import pickle
from collections import deque
from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch
from torch import Tensor


def fingerprint(tree: Any) -> str:
    """Hash tensors by type, shape and bytes (not by device), containers by content, the rest as pickled."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in _pieces(tree):
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return digest.hexdigest()


def _pieces(node: Any) -> Iterator[bytes]:
    if isinstance(node, Tensor):
        yield f"tensor {node.dtype} {tuple(node.shape)}".encode()
        yield _content(node)
    elif isinstance(node, Mapping):
        yield f"mapping {len(node)}".encode()
        for key, value in sorted(node.items(), key=lambda item: repr(item[0])):
            yield repr(key).encode()
            yield from _pieces(value)
    elif isinstance(node, list | tuple):
        yield f"sequence {len(node)}".encode()
        for value in node:
            yield from _pieces(value)
    elif isinstance(node, Set):
        yield repr(sorted(map(repr, node))).encode()
    elif node is None or isinstance(node, bool | int | float | str | bytes):
        yield repr(node).encode()
    elif isinstance(node, deque):
        yield f"deque {node.maxlen}".encode()
        yield from _pieces(list(node))
    elif hasattr(node, "__dict__") and not isinstance(node, type):
        # By its attributes: pickled, a set within would differ from process to process.
        yield f"{type(node).__module__}.{type(node).__qualname__}".encode()
        yield from _pieces(vars(node))
    else:
        yield pickle.dumps(node, protocol=4)


def _content(tensor: Tensor) -> bytes:
    dense = tensor.detach().to("cpu").to_dense() if tensor.layout != torch.strided else tensor.detach().to("cpu")
    plain = dense.resolve_conj().resolve_neg().contiguous()
    # Of a single element any stride is contiguous to torch, but not to its views.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()
