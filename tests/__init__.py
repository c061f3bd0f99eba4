"""Tests of hvd-elastic-ext. ``tests.support`` holds what several of them need; see docs/testing.md."""
