"""How many hosts the job asks for: by hand, or as ``--autoscale`` decides by steps, load and prices.

``signals`` reads values from outside, and ``scaling`` those of the job. A policy (``policies``, ``efficiency``) wishes
for a size; ``decide`` applies the limits of job, cluster and time; ``scaling`` records the decision and chooses the
hosts that go; ``scalers`` adds and removes them. All but ``signals`` and ``scalers`` are pure: a simulated job and the
page of jobs use the same policies.
"""
