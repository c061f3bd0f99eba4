"""Measures ours beside stock Horovod, in the same run and on the same machine.

Belongs here: cases, what they need to start and watch jobs, and the code that repeats, compares and prints.
Never here: anything that the product needs at run time.
"""
