"""Messages between the processes of this package: bytes, lines and environment variables.

Belongs here: frames between launcher and agent, a place in a world as Horovod writes it, and what a launcher and the
programs in its slots know of each other. Agents load ``wire`` at their start: nothing slow.

Never here: what a message means, and sockets.
"""
