"""`freshq simulate`: what a policy would do under a load."""
