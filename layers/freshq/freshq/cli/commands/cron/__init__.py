"""`freshq cron`: puts the tasks of schedules."""
