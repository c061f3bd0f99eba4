"""Who holds the newest commit, whether a world may form without it, and how it gets to where it is needed.

Commits lie in memory that agents own, so they outlive the processes that made them. ``holders`` knows which slot's
memory holds which commit; ``custody`` decides: a world forms only from the newest known commit, as long as a holder can
be reached or may come back, and a loss is named; ``transfers`` sends a commit from one host to another, or loads it
from storage.
"""
