"""Published hosts in, running workers out.

Belongs here: what plans, starts, watches and ends a job. From the command to the decisions, each folder may import
those below it::

    cli                        commands: options in, exit code out
    job                        one process that runs a job: its loop, its files, its sockets
    folder                     what is kept in the job's folder, for the next launcher
    driver, suspend            what an event means; what happens while a job sleeps
    planners                   each looks at what is known, asks the rules, and has something done
    state, agents, sources, options
    rules                      decisions: pure, they know nothing but their arguments

Never here: the daemon, the worker and the agent. The launcher starts programs of theirs by name.
"""
