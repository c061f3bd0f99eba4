"""One of the names by which scripts import the SDK."""

from . import check_alive, init

__all__ = ["check_alive", "init"]
