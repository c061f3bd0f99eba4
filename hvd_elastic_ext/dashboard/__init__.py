"""A page that answers "is my training all right, and if not, why?", of jobs that run and of jobs that have ended.

Belongs here: the content of a page, of bounded size for a journal of any length; the page itself; its server.

Never here: decisions about a job, and a second interpretation of the journal, which is the report's. Changes to a job
go through the launcher's socket, as with `hvd-elastic hosts`.
"""
