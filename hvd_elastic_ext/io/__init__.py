"""Access to the machine for several parts of the package; each module uses at most one third-party package.

Belongs here: thin adapters without decisions: a watched file, a file that a user names, a configuration file, a file to
which lines are appended, text for slow readers, words of a command line, requests to a cluster, trees of processes,
calls that may take long.

Never here: decisions, and imports of this package other than ``core``.
"""
