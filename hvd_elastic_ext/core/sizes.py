"""Numbers of bytes as people read them."""

from __future__ import annotations


def size_text(count: int) -> str:
    """Return a number of bytes in the unit that fits, such as ``604 MB``."""
    amount, units = float(count), iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while amount >= 999.5 and unit != "TB":
        amount, unit = amount / 1000, next(units)
    return f"{amount:.3g} {unit}"
