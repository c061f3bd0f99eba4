"""What a page shows of a job, computed from its journal and its launcher's answer.

Belongs here: sentences, tables and curves as plain values; a journal of any length as few records. Never here: files,
sockets, clocks, and how a page looks.
"""
