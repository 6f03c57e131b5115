"""What a worker does."""

from .models import Order

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


@task
def ship(order_id: int) -> str:
    parcel = f"parcel-{order_id}"
    Order.objects.filter(pk=order_id).update(parcel=parcel)
    confirm.enqueue(order_id)
    return parcel


@task(queue_name="mail", priority=10)
def confirm(order_id: int) -> None:
    print(f"order {order_id} is on its way", flush=True)
