"""Access to the machine for several parts of the package; each module uses at most one third-party package.

Belongs here: thin adapters without decisions: a watched file, a configuration file, a file that lines are appended to,
text for slow readers, words of a command line, credentials of a cluster, trees of processes, calls that may take long.

Never here: anything that decides, and anything of ours but ``core``.
"""
