"""The Celery application. Tasks are short slices; a lost, late or doubled message changes nothing."""

import os

from celery import Celery
from celery.signals import worker_ready

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sparkweb.settings")

app = Celery("sparkweb")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["apps.runs", "apps.watch"])


@app.on_after_finalize.connect
def plan_the_beat(sender: Celery, **_: object) -> None:
    from django.conf import settings

    sender.add_periodic_task(
        settings.REAP_PERIOD_S, sender.signature("runs.reap"), name="reap", expires=settings.REAP_PERIOD_S * 3
    )
    sender.add_periodic_task(
        settings.WATCH_PERIOD_S, sender.signature("watch.look"), name="watch", expires=settings.WATCH_PERIOD_S
    )


@worker_ready.connect
def say_alive(**_: object) -> None:
    from apps.runs import heartbeat

    heartbeat.start()
