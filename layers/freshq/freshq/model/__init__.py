"""Tasks: their statuses and options, and what each verb does to them. No I/O."""
