"""One training process: its link to the agent, and how it enters and leaves worlds.

Belongs here: modules that every script of an agent must load. Standard library only.

Never here: torch, commits, States.
"""
