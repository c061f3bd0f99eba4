"""Makes a JSON schema of one version of a CRD: ``python -m tests.support.schemas.reduce VERSION < crd.yaml``.

An API server drops (*prunes*) fields that a CRD does not have, without an error. Here they are errors, as with
``kubectl apply --validate=strict``: the author of such a field wanted it to have an effect.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import yaml

LEFT_OUT = frozenset({"description", "default", "example", "externalDocs"})
"""Descriptions, and keys that only servers use."""


def reduced(node: dict[str, Any], *, top: bool = False) -> dict[str, Any]:
    """Turn an OpenAPI schema of a CRD into JSON schema without prose. Pure."""
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = {key: value for key, value in node.items() if key not in LEFT_OUT and not key.startswith("x-kubernetes-")}
    for key in ("items", "additionalProperties", "not"):
        if isinstance(made.get(key), dict):
            made[key] = reduced(made[key])
    for key in ("allOf", "anyOf", "oneOf"):
        if key in made:
            made[key] = [reduced(each) for each in made[key]]
    if made.pop("nullable", False) and "type" in made:
        made["type"] = [made["type"], "null"]
    if "properties" in made:
        kept = {name: each for name, each in made["properties"].items() if not (top and name == "status")}
        made["properties"] = {name: reduced(each) for name, each in kept.items()}
        closed = node.get("type") == "object" and not node.get("x-kubernetes-preserve-unknown-fields")
        if closed:
            made.setdefault("additionalProperties", False)
    return made


def main() -> int:
    wanted = sys.argv[1]
    versions = yaml.safe_load(sys.stdin)["spec"]["versions"]
    (found,) = (each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == wanted)
    print(json.dumps(reduced(found, top=True), separators=(",", ":"), sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
