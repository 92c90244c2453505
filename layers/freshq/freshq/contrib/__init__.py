"""Integrations with frameworks. Each needs its framework, and is not imported elsewhere."""
