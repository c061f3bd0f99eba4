"""The command ``hvd-elastic doctor``: what would break a job on this machine or on its hosts.

Belongs here: ``probes`` gathers facts, ``facts`` holds them, ``findings`` judges them (pure), ``command`` prints them.

Never here: anything that changes a machine or a job.
"""
