"""The job as one value (``job.JobState``), and the words in which planners ask for something to be done.

Belongs here: what is known of agents, processes, the present world, commits, checkpoints and health; actions; orders
that several planners give.

Never here: sockets, files, clocks, and decisions.
"""
