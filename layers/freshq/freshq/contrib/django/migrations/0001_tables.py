"""Create the tables."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from freshq.contrib.django import Project
from freshq.contrib.django.migrations import to_version


class Migration(migrations.Migration):
    """The tables, and the model through which the admin reads them."""

    initial = True
    atomic = False  # it opens a transaction itself
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        to_version(1),
        migrations.CreateModel(
            name="Task",
            fields=[("task_id", models.CharField(max_length=255, primary_key=True))],
            options={
                "managed": False,
                "db_table": Project.of_settings().table,
                "default_permissions": ("view", "change"),
            },
        ),
    ]
