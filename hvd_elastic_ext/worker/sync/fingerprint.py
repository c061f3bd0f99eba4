"""A hash of a tree of state: equal on all processes with the same state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from hvd_elastic_ext.checkpoint.values.trees import encode_value
from hvd_elastic_ext.checkpoint.values.write import write


def fingerprint(tree: Any) -> str:
    """Hash tensors by type, shape and bytes (not by device), containers by content, the rest as text."""
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
    else:
        tensors: list[Tensor] = []
        yield encode_value(write(node, tensors))
        for tensor in tensors:
            yield from _pieces(tensor)


def _content(tensor: Tensor) -> bytes:
    dense = tensor.detach().to("cpu").to_dense() if tensor.layout != torch.strided else tensor.detach().to("cpu")
    plain = dense.resolve_conj().resolve_neg().contiguous()
    # Torch calls a single element contiguous with any stride, but cannot view it as bytes then.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()
