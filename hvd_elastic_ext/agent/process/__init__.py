"""The agent as a process: its one loop, the job that it has joined, and helper processes for checkpoints.

Belongs here: code that connects slots, launcher and machine.

Never here: code that only one slot needs, or only the connection to the launcher.
"""
