"""Promises of the launcher's ports."""
