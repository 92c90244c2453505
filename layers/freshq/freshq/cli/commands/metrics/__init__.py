"""`freshq metrics`: the gauges of a queue for Prometheus."""
