"""The application that a project installs."""

from __future__ import annotations

from django.apps import AppConfig


class FreshqConfig(AppConfig):
    """freshq, for `INSTALLED_APPS`."""

    name = "freshq.contrib.django"
    label = "freshq"
    verbose_name = "freshq"
