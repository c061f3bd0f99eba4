"""The launcher's driver in random histories of a simulated cluster. An oracle, which knows the real state, checks
it."""
