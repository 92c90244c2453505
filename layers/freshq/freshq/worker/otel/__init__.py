"""What queues and workers tell to OpenTelemetry: spans and metrics. Only this room imports it."""
