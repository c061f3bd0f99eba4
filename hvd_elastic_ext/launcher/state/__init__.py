"""The job as one value (``job.JobState``), what happens to it, and what planners ask for.

Belongs here: what is known of agents, processes, the present world, commits, checkpoints and health; events; actions;
orders that several planners give.

Never here: sockets, files, clocks, and decisions.
"""
