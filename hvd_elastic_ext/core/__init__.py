"""Values and functions that the daemon, the launcher, the agent and the worker share.

Belongs here: immutable values, pure functions over them, and the text and JSON
forms in which they are exchanged. Standard library only.

Never here: sockets, files opened by name, or any third-party package. Streams
and clocks are arguments; ``clock`` has the interface and the machine's own clock.
"""
