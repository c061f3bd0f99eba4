"""What the driver knows: agents, processes, the present world, commits in memory, blame.

Belongs here: facts, and the few parts that keep them up to date and give orders to agents (``fleet``, ``worlds``).

Never here: sockets, files, and decisions that can be made without these facts: those are ``rules``.
"""
