"""Jobs on a cluster: made, looked at, changed and ended from a laptop. Each folder may import those below it::

    cli
    cluster             what asks an API server
    rendering, conversion    objects from a job; others' objects as ours
    spec                one job, checked

Belongs here: the commands ``submit``, ``get``, ``logs`` and their kin, and what they share.

Never here: what runs inside a job.
"""
