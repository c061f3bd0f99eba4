"""What the job does.

Belongs here: one question a module. A planner reads the state, asks ``rules``, and says what is to be done.

A planner is a function ``(JobState) -> Plan``; ``driver/plan.py`` lists all of them in their order. It changes only the
state, and adds to :attr:`JobState.to_do` what is to be done outside. No planner imports another one: what one needs of
another is in the state. The other one has put it there, or reads it later in the same look.

Never here: what an event changes (``state/effects``), questions of several planners (``state/facts``), decisions that
can be made without the state (``rules``), sockets, processes and files.
"""
