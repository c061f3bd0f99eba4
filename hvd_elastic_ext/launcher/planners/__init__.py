"""What the job does.

Belongs here: one question a module. A planner reads the state, asks ``rules``, and says what is to be done.

A planner is a function ``(JobState) -> Plan``; ``driver/plan.py`` lists all of them in their order. It changes only the
state, and adds to :attr:`JobState.to_do` what is to be done outside. The state has all facts.
Facts that several planners need are in ``state``, and decisions in ``rules``. A planner calls another one only to have
it act, as the import contracts allow: none holds a reference to another.
Functions beside it take in what an event says of the same question.

Never here: sockets, processes, files, and decisions that can be made without the state: those are ``rules``.
"""
