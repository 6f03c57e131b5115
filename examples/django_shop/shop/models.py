"""Orders."""

from django.db import models


class Order(models.Model):
    item = models.TextField()
    parcel = models.TextField(default="")

    def __str__(self) -> str:
        return f"order {self.pk}: {self.item}"
