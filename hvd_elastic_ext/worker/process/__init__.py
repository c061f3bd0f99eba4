"""One training process: its link to the agent, and how it enters and leaves worlds.

Belongs here: what every script that an agent starts must load. Standard library only.

Never here: torch, commits, States.
"""
