"""Sends objects to an API server by the official client's simplest function.

python -m benchmarks.scripts.create KUBECONFIG FILE

FILE has a List of objects, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kubernetes import client, config

NAMESPACE = "default"
PLURALS = {"NetworkPolicy": "networkpolicies"}


def main(kubeconfig: str, file: str) -> None:
    """Send each object."""
    config.load_kube_config(kubeconfig)
    with client.ApiClient() as api:
        for body in json.loads(Path(file).read_text())["items"]:
            version, kind = body["apiVersion"], body["kind"]
            root = f"/apis/{version}" if "/" in version else f"/api/{version}"
            plural = PLURALS.get(kind, f"{kind.lower()}s")
            path = f"{root}/namespaces/{NAMESPACE}/{plural}"
            api.call_api(path, "POST", body=body, auth_settings=["BearerToken"], response_type="object")


if __name__ == "__main__":
    main(*sys.argv[1:])
