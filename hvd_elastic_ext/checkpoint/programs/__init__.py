"""Programs: ``hvd-elastic checkpoints``, and those that agents start for checkpoints.

Belongs here: requests and answers, options and exit codes.

Never here: the content of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Request = Mapping[str, Any]
"""What an agent asks its helper for, as JSON (``agent_requests``)."""
HelperAnswer = dict[str, Any]
Send = Callable[[HelperAnswer], None]
"""Takes an answer that is not the last one."""
