"""The table of tasks as the admin reads it. freshq's own statements write it."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from freshq.contrib.django import Project
from freshq.model.task import TaskStatus

# The statuses that a SQL database keeps; the others belong to attached tables.
STATUSES = [
    each.value for each in TaskStatus if each not in (TaskStatus.UNDER_CONSTRUCTION, TaskStatus.READY)
]


class KeyField(models.CharField):
    """Text that MariaDB and MySQL keep as bytes, because none of their collations compares exactly."""

    def from_db_value(self, value: Any, _expression: object, _connection: object) -> str | None:
        """Return text."""
        return value.decode() if isinstance(value, bytes) else value


class Task(models.Model):
    """A task; times are microseconds since the epoch."""

    task_id = KeyField("id", max_length=255, primary_key=True)  # within a queue, which the admin selects
    queue = KeyField(max_length=64)
    status = models.CharField(max_length=16, choices=[(name, name) for name in STATUSES])
    kind = KeyField(max_length=255)
    task_group = KeyField("group", max_length=255)
    priority = models.SmallIntegerField()
    attempts = models.IntegerField()
    created_us = models.BigIntegerField()
    updated_us = models.BigIntegerField()
    deadline_us = models.BigIntegerField()
    shed_reason = models.CharField(max_length=32)
    error = models.TextField()
    payload = models.TextField()
    result = models.TextField()

    class Meta:
        """A table that Django's migrations leave alone."""

        managed = False
        db_table = Project.of_settings().table
        default_permissions: ClassVar = ("view", "change")

    def __str__(self) -> str:
        return str(self.task_id)
