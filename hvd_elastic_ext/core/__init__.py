"""Words shared by the daemon, the launcher and the worker.

Belongs here: frozen values, pure functions over them, and the text and JSON
forms in which those strangers exchange them. Standard library only.

Never here: threads, sockets, files opened by name, the real clock, or any
third-party package. Streams and clocks are passed in.
"""
