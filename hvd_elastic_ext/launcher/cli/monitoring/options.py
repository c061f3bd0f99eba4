"""The options of ``hvd-elastic run`` for metrics, dashboard, webhook and TensorBoard."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.notify.webhook import webhook_url
from hvd_elastic_ext.launcher.options.listening import listen_address, listen_address_of_hosts

PORT = "[HOST:]PORT"


def _folder(text: str) -> Path:
    if not text or "://" in text:
        raise UsageError(f"--tensorboard {text!r}: that is not a folder of this machine")
    return Path(text)


def add_to(option: Callable[..., Any]) -> None:
    """Add them. ``option``: adds one, as ``add_argument`` does."""
    option(
        "--metrics",
        type=listen_address,
        metavar=PORT,
        help="serve metrics for Prometheus there (without HOST: to this machine only; docs/metrics.md)",
    )
    option(
        "--agent-metrics",
        type=listen_address_of_hosts,
        metavar=PORT,
        help="serve metrics of each agent there (without HOST: to its own machine only)",
    )
    option(
        "--dashboard",
        type=functools.partial(listen_address, where="--dashboard"),
        metavar=PORT,
        help="serve a page of the job there, and keep the output of processes in STATE_DIR/output (docs/dashboard.md)",
    )
    option(
        "--tensorboard",
        type=_folder,
        metavar="DIR",
        help="write what rank 0 reports into DIR/JOB/RUN, for TensorBoard (docs/metrics.md)",
    )
    option(
        "--notify",
        type=webhook_url,
        metavar="URL",
        help="webhook for messages about waits, sleeps, crash loops, lost steps and the end; file:PATH: a file "
        "with the URL",
    )
