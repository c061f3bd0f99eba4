"""A page that answers "is my training all right, and if not, why?", of jobs that run and of jobs that have ended.

Belongs here: what a page shows, kept small from a journal of any length; the page itself; the server that shows it.

Never here: decisions about a job, and a second reading of the journal: what an event means, the report knows. What
changes a job goes through the launcher's socket, as `hvd-elastic hosts` does.
"""
