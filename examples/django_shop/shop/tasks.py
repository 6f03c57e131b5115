"""What a worker does."""

from faultline.integrations.django import atomic

from .models import Order

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


@task
def ship(order_id: int) -> None:
    """What the ORM writes and the end of the task commit together: an order is shipped exactly once."""
    with atomic() as tx:
        order = Order.objects.select_for_update().get(pk=order_id)
        order.parcel = f"parcel-{order_id}"
        order.save()
        confirm.enqueue(order_id)
        tx.complete(order.parcel)


@task(queue_name="mail", priority=10)
def confirm(order_id: int) -> None:
    print(f"order {order_id} is on its way", flush=True)
