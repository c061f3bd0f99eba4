"""Programs that cases run in processes of their own. Each writes its figures to a file.

Belongs here: programs that work with the stock State and with ours.
Never here: whether a figure is good enough.
"""
