"""The job as a function: an event changes the state, planners decide by the state, the executor does the actions.

Belongs here: which effects an event has (``reduce``), the order of planners (``plan``), the executor, and
recordings.

Never here: events (``state/events.py``), and decisions that need more than the event: those are ``planners`` and
``rules``. Small ones are part of the effects (a strike, an agent that is dismissed, the job's end): the event alone
decides them. The reducer changes :class:`JobState` in place: a copy for each of many heartbeats would cost too much.
"""
