"""Which commits become durable, how often, and what is saved before everything stops.

``attempt`` makes one checkpoint: it names a future commit, which all ranks keep, and agents write it beside the
training. ``interval`` chooses how often by what it costs and how often something fails. ``save_then_stop`` makes the
last one: before an exit, a sleep, a preemption, and at the end of training. ``restore`` loads the newest one before the
first world.
"""
