"""What puts tasks by itself: the relay of an outbox, and schedules."""
