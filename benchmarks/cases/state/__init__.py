"""Commits, roll-backs, syncs and checkpoints."""
