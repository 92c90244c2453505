"""For commands that run until a signal ends them: the signals, and the reports."""
