"""Parts of the driver, one folder a subject. Each has one question of its own.

A planner looks at ``state``, asks ``rules`` for the decision, and has it done.

Never here: sockets, processes, files, and decisions that can be written as pure functions: those are ``rules``.
"""
