"""Notice a change, keep a commit, return to it.

Never imports the daemon or the launcher.
"""
