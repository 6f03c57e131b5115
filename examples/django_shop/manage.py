"""A Django project whose tasks run on Faultline: an order and the task that ships it commit together.

python manage.py migrate                     # Django's tables, and Faultline's schema
python manage.py test                        # runs the tasks with a real worker, in the test runner's database
python manage.py faultline_worker            # runs the tasks
python manage.py runserver                   # curl -X POST 'localhost:8000/orders?item=lamp'

FAULTLINE_DSN names the database: postgresql://….
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
