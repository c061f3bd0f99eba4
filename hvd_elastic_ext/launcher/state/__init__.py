"""The job as one value (``job.JobState``), what follows from it (``facts``), and what changes it (``effects``).

Belongs here: what is known of agents, processes, the present world, commits, checkpoints and health; events; actions;
orders that several planners give.

Never here: sockets, files, clocks, and decisions.
"""
