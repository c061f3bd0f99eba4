"""Values and functions that the daemon, the launcher, the agent and the worker share.

Belongs here: frozen values, pure functions over them, and the text and JSON
forms in which they are exchanged. Standard library only.

Never here: sockets, files opened by name, or any third-party package. Streams
and clocks are passed in; ``clock`` has the machine's own and one for tests.
"""
