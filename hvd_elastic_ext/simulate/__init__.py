"""Simulates a job in virtual time: the launcher's own driver runs with hosts that come and go as in a trace.

Belongs here: the simulated cluster, traces, the accounting of a job's time, comparisons of options.
Never here: decisions of the launcher, which are imported.
"""
