"""A real elastic job on this machine, with hosts added, killed and taken away on a script.

Belongs here: the script of events, the live view, the report. It drives the
launcher from outside, as a user would, through its command line, a hosts file
and the journal.
"""
