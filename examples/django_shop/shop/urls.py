"""The pages."""

from django.urls import path

from . import views

urlpatterns = [path("orders", views.order), path("tasks/<task_id>", views.state)]
