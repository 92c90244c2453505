"""Sources of tasks: the relay of an outbox, and schedules."""
