"""Values that the daemon, the launcher, the agent and the worker share.

Belongs here: frozen values, pure functions over them, and the text and JSON
forms in which they are exchanged. Standard library only.

Never here: threads, sockets, files opened by name, the real clock, or any
third-party package. Streams and clocks are passed in.
"""
