"""Runs work that may take long in threads of its own, so that no loop waits for it.

Belongs here: how calls, text and events get to a thread, and how the thread ends. Never here: the work in the thread.
"""
