"""Where this process is in its program: its training calls, their results, and how it catches up with others.

Belongs here: the number of the call, what a call leaves behind, what collectives return before and between calls, and
what a process gets that comes when it is over.

Never here: what a State contains (``state``), and who joins a world (the launcher).
"""
