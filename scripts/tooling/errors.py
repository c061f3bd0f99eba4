"""The one error that ends a script with a message and no traceback."""


class ToolingError(Exception):
    """A message for the user: what went wrong, where, and what to do."""
