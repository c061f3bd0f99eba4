"""What tests share. Import it from any test or conftest: ``from tests.support.waiting import wait_until``.

Belongs here: waiting with a deadline, running processes that are always ended, hosts made of network namespaces, and
the plugin that fails a test which leaves something behind.

Never here: anything that knows one part of the product, and assertions about it.

=====================  ==========================================================================================
module                 use
=====================  ==========================================================================================
``waiting``            ``wait_until(lambda: value_or_false, what="the hosts file", timeout=10)`` returns the value
``clock``              ``ManualClock``: it moves only when told to
``processes``          ``with run_process([...], env={"A": "1"}) as p: p.wait_for("ready"); assert p.wait() == 0``
``tensorflow``         ``@needs_tensorflow``: skipped without TensorFlow, and run by ``scripts/matrix-tensorflow``
``nethosts``           the fixture ``nethosts``: real hosts on one machine, with sshd; cut, freeze, kill them
``pytest_plugin``      the pytest plugin loaded by tests/conftest.py: leak checks, strict mode, fixtures
=====================  ==========================================================================================

Fixtures every test can ask for: ``manual_clock`` (a ``ManualClock``) and ``nethosts``.

A test fails if a process that it started, a non-daemon thread, a thread of our own, a network namespace or a
shared-memory file is left at its end. What is left is removed. Processes started by module- or session-scoped fixtures
are checked when the session ends.
"""
