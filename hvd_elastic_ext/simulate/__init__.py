"""A job in virtual time: the launcher's own driver over hosts that come and go as in a trace.

Belongs here: the simulated cluster, traces, what a simulated job has done with its hosts, comparisons of options.
Never here: decisions of the launcher. They are imported, not written a second time.
"""
