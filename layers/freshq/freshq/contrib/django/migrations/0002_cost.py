"""Add the cost of tasks."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

from freshq.contrib.django.migrations import to_version


class Migration(migrations.Migration):
    """The column of costs."""

    atomic = False  # it opens a transaction itself
    dependencies: ClassVar[list[Any]] = [("freshq", "0001_tables")]
    operations: ClassVar[list[Any]] = [to_version(2)]
