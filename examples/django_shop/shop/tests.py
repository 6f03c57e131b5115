"""Run with `manage.py test`: a real worker runs the tasks, in the test runner's database."""

from django.test import TestCase, TransactionTestCase

from faultline.integrations.django import application
from faultline.testing import drain

from .models import Order
from .tasks import ship


class ShipTests(TransactionTestCase):
    def test_an_order_is_shipped_and_confirmed(self) -> None:
        answer = self.client.post("/orders?item=lamp").json()

        self.assertEqual(drain(application()).succeeded, 2)

        self.assertEqual(Order.objects.get(pk=answer["order"]).parcel, f"parcel-{answer['order']}")
        self.assertEqual(self.client.get(f"/tasks/{answer['task']}").json(), {"status": "SUCCESSFUL", "attempts": 1})


class OrderTests(TestCase):
    """What is only to be enqueued needs no commit."""

    def test_an_order_enqueues_its_shipping(self) -> None:
        answer = self.client.post("/orders?item=lamp").json()

        result = ship.get_result(answer["task"])

        self.assertEqual((result.args, str(result.status)), ([answer["order"]], "READY"))
