"""The import hook of training processes.

Belongs here: ``sitecustomize.py``. Never here: any other module. This folder is on ``PYTHONPATH`` of
training processes, so a module in it would hide a user's module of the same name.
"""
