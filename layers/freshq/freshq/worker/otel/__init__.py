"""Spans and metrics of queues and workers for OpenTelemetry. Only this package imports it."""
