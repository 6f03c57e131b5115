"""What a browser asks for."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from .models import Order
from .tasks import ship


@csrf_exempt
@require_POST
@transaction.atomic
def order(request: HttpRequest) -> JsonResponse:
    """The order and its task commit together, or neither does."""
    made = Order.objects.create(item=request.GET["item"])
    result = ship.enqueue(made.pk)
    return JsonResponse({"order": made.pk, "task": result.id})


def state(_request: HttpRequest, task_id: str) -> JsonResponse:
    result = ship.get_result(task_id)
    return JsonResponse({"status": result.status, "attempts": result.attempts})
