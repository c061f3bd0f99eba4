"""What happens in a job, in the forms of tools that others read: spans of OpenTelemetry, event files of TensorBoard.

Belongs here: what of the journal becomes a span or a scalar (pure), and the threads that send and write them.

Never here: decisions, and anything that the launcher waits for.
"""
