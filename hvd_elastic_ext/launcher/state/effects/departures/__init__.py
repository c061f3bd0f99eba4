"""Effects of hosts and processes that leave.

Belongs here: notices, ends of processes, the order to end the job.

Never here: what follows from that at a look: see ``planners/departures``.
"""
