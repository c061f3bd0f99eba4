"""The demo: a real elastic job on this machine, with hosts that are added, killed and reclaimed.

Belongs here: the scenario, its runner, the live view. The demo uses the launcher from outside, as a user would: by its
command line, a hosts file and the journal. Never here: an import of the launcher, the agent or the worker.
"""
