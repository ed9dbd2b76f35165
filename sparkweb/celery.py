"""The Celery application. Tasks are short slices; a lost, late or doubled message changes nothing."""

import os

from celery import Celery
from celery.signals import after_task_publish, beat_init, worker_init, worker_ready, worker_shutting_down

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sparkweb.settings")
# Django's checks are of the code, which `make check` runs: they import all pages and the API, which no worker serves.
os.environ.update(CELERY_SKIP_CHECKS="1")

app = Celery("sparkweb")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.set_default()  # tasks that any process sends go to our broker


@worker_init.connect
def import_tasks(**_: object) -> None:
    """Beat sends them by name: it needs neither the tasks nor the half of the product that they import."""
    import apps.runs.tasks
    import apps.watch.tasks  # noqa: F401


@app.on_after_finalize.connect
def plan_the_beat(sender: Celery, **_: object) -> None:
    from django.conf import settings

    sender.add_periodic_task(
        settings.REAP_PERIOD_S, sender.signature("runs.reap"), name="reap", expires=settings.REAP_PERIOD_S * 3
    )
    sender.add_periodic_task(
        settings.WATCH_PERIOD_S, sender.signature("watch.look"), name="watch", expires=settings.WATCH_PERIOD_S
    )
    sender.add_periodic_task(
        settings.FOLLOW_PERIOD_S, sender.signature("runs.follow"), name="follow", expires=settings.FOLLOW_PERIOD_S * 2
    )
    sender.add_periodic_task(60.0, sender.signature("watch.thin"), name="thin the history", expires=60.0)
    sender.add_periodic_task(600.0, sender.signature("runs.forget_logs"), name="forget logs", expires=600.0)

    sender.add_periodic_task(
        600.0, sender.signature("watch.note_audit_head"), name="note the audit head", expires=600.0
    )


@worker_ready.connect
def say_alive(**_: object) -> None:
    from apps.runs import heartbeat, working
    from apps.runs.finding import Finder

    working.release_dead()
    heartbeat.start()
    Finder().start()


@worker_shutting_down.connect
def leave(**_: object) -> None:
    """Slices end at their next round and are taken up by another worker, or by the next one."""
    from apps.runs import ending

    ending.ask()


@beat_init.connect
def note_the_beat(**_: object) -> None:
    """Each message that beat could send leaves its time on VAR/run/beat, for `serve beat --healthy`."""
    from django.conf import settings

    note = settings.VAR / "run" / "beat"

    def sent(**_: object) -> None:
        note.touch()

    after_task_publish.connect(sent, weak=False)
