"""The types of requests and answers that the programs of agents share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Request = Mapping[str, Any]
HelperAnswer = dict[str, Any]
Send = Callable[[HelperAnswer], None]
