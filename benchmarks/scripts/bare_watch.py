"""The simplest follower: it watches raw events, keeps names, and replaces a file. It lists once and never recovers.

python -m benchmarks.scripts.bare_watch KUBECONFIG SELECTOR HOSTS_FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import urllib3
import yaml


def main(kubeconfig: Path, selector: str, hosts_file: Path) -> None:
    """Follow until this process is killed."""
    settings = yaml.safe_load(kubeconfig.read_text())
    server, token = settings["clusters"][0]["cluster"]["server"], settings["users"][0]["user"]["token"]
    http, headers = urllib3.PoolManager(), {"Authorization": f"Bearer {token}"}
    url = f"{server}/api/v1/namespaces/default/pods"
    listed = http.request("GET", url, fields={"labelSelector": selector}, headers=headers).json()
    names = {pod["metadata"]["name"]: None for pod in listed["items"]}
    write(names, hosts_file)
    since = {"watch": "1", "labelSelector": selector, "resourceVersion": listed["metadata"]["resourceVersion"]}
    answer = http.request("GET", url, fields=since, headers=headers, preload_content=False)
    rest = b""
    for piece in answer.stream(None):
        *lines, rest = (rest + piece).split(b"\n")
        for line in filter(None, lines):
            take(json.loads(line), names)
        write(names, hosts_file)


def take(event: dict[str, Any], names: dict[str, None]) -> None:
    """Apply one event."""
    metadata = event["object"]["metadata"]
    if event["type"] == "DELETED" or metadata.get("deletionTimestamp"):
        names.pop(metadata["name"], None)
    else:
        names[metadata["name"]] = None


def write(names: dict[str, None], hosts_file: Path) -> None:
    """Replace the file."""
    fresh = hosts_file.with_suffix(".new")
    fresh.write_text("".join(f"{name}.job.default.svc:1\n" for name in names))
    fresh.replace(hosts_file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
