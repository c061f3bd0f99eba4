"""What happens in a job, in the forms of tools that others read: metrics for Prometheus, messages to a webhook,
spans of OpenTelemetry, event files of TensorBoard.

What of a job becomes a metric, a message, a span or a scalar is computed; threads send and write it. The launcher waits
for none of them, and nothing here decides anything.
"""
