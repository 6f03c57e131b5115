"""What the tasks are about."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    paid = models.IntegerField(default=0)

    class Meta:
        app_label = "django_site"

    def __str__(self) -> str:
        return f"order {self.pk}"
