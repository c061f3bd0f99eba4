"""Messages between the processes of this package: bytes, lines and environment variables.

Belongs here: frames between launcher and agent, a place in a world as Horovod writes it, and the names that a launcher
and the programs in its slots share. Agents load ``wire`` at their start, so it must load fast.

Never here: the meaning of messages, and sockets.
"""
