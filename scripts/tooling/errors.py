"""The one error that ends a script with a message and no traceback."""


class ToolingError(Exception):
    """What went wrong, where, and what to do about it, in words for the person at the terminal."""
