"""What a commit says of its parts besides their contents: names of variables, and how a Keras model is built.

Contents are kept by place, and names may differ between processes: Keras counts its layers in each. So descriptions are
in the part of a commit that stays on its rank: ranks do not send or compare them. Only an export reads them.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Final

from hvd_elastic_ext.core.json_text import to_text

KEY: Final = "about"
"""The key for them, by part, in a rank's own part of a commit."""

RUNS_CODE: Final = frozenset(
    {"Lambda", "ClassMethod", "InstanceMethod", "InstanceProperty", "TensorFlowOpLayer"}
    | {"TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer"}
)
"""Layers of Keras that run what their configuration holds or names. No model is described or built with them."""

LIMIT: Final = 64 << 20
"""Most bytes of a description that is not compressed."""


@dataclass(frozen=True, slots=True)
class Description:
    """Of one part of a State."""

    names: tuple[str, ...] = ()
    """Of its variables, in the order of their contents."""

    keras: str = ""
    """Package and version of the Keras of a model, such as ``tf_keras 2.21.0``; empty for what is not a model."""

    config: str = ""
    """The configuration that Keras builds the model from, as JSON; empty if there is none."""


def encode(description: Description) -> bytes:
    """Return the description in few bytes: each commit has it."""
    found = {"names": description.names, "keras": description.keras, "config": description.config}
    return zlib.compress(to_text(found).encode("utf-8", "surrogatepass"))


def decode(data: bytes) -> Description:
    """Return the description. Raises ``ValueError`` for bytes of another form."""
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, LIMIT).decode("utf-8", "surrogatepass")
        found = json.loads(text) if reader.eof else None
    except (zlib.error, ValueError, RecursionError) as error:
        raise ValueError(f"a description cannot be read: {error}") from None
    if not isinstance(found, dict) or not isinstance(names := found.get("names"), list):
        raise ValueError("a description of another form")
    keras, config = found.get("keras"), found.get("config")
    if not (isinstance(keras, str) and isinstance(config, str) and all(isinstance(each, str) for each in names)):
        raise ValueError("a description of another form")
    return Description(tuple(names), keras, config)
