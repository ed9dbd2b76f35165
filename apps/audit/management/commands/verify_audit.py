"""`manage.py verify_audit`: exit 0 when the chain is whole, 1 naming the first broken entry."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand

from apps.audit.verifying import verify


class Command(BaseCommand):
    help = "Check the audit trail's hash chain; prints one JSON object."

    def handle(self, *args: Any, **options: Any) -> None:
        result = verify()
        self.stdout.write(json.dumps(result))
        if not result["ok"]:
            sys.exit(1)
