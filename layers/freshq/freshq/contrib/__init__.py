"""Integrations with frameworks. Each needs its framework, and nothing else imports it."""
