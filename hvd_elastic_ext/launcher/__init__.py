"""Starts, watches and ends one job on the published hosts.

Belongs here: what plans, starts, watches and ends a job. From the command to the decisions, each folder may import
those below it::

    cli                        commands: options in, exit code out
    job                        one process that runs a job: its loop, its files, its sockets
    folder, driver, engines, suspend, metrics, notify, exports  what is saved; what an event causes; programs
                               of engines; a sleep; output for others
    planners, agents, sources  what the job does; connections with agents; where hosts come from
    state, options             what is known, and what the user has asked for
    rules                      decisions: pure functions of their arguments

Never here: the daemon, the worker and the agent. The launcher starts their programs by name.
"""
