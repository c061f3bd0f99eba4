"""Checks that run in real Horovod worlds: one function of a State class each. Never here: judgements."""
