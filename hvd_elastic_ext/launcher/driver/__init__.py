"""The job as a function: an event changes the state, planners decide by the state, the executor does the actions.

Belongs here: what an event changes (``reduce``), the order of planners (``plan``), the executor, and
recordings.

Never here: events (``state/events.py``), and decisions that need more than the event: those are ``planners`` and
``rules``. The reducer has small ones done at once by functions of planners (a strike, an agent that is dismissed, the
end of the job), since the event alone decides them. It changes :class:`JobState` in place: a copy for each of many
heartbeats would cost too much.
"""
