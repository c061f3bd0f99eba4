"""Lost steps are executed again as they were: ``run --replay``.

Belongs here: what is noted of each step since the last commit, who takes which part of a lost step in a smaller world
(``notes``), and what a step does so that it can be repeated exactly (``recorder``).

Never here: which samples a rank takes; commits.
"""
