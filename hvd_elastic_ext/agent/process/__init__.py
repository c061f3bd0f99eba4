"""The agent as a process: its one loop, the job that it has joined, and helper processes for checkpoints.

Belongs here: what joins slots, launcher and machine.

Never here: what only one slot needs, or only the connection to the launcher.
"""
