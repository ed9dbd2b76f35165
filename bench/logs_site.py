"""The worker of benchmark `logs`: the product's own executor, recorder and SSH, in a process of its own.

    python -m bench.logs_site     VAR, REDIS_URL and PORT in the environment; one JSON object a line in, one out

Works off runs as a Celery worker would, without Celery. Asked {"do": "begin", "script": …} it starts a run of one job and answers
its id; {"do": "told", "run": id} answers how far it is; {"do": "compared", "lines": n} stores the same lines both ways.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
import time
from typing import Any

import django

Told = dict[str, Any]


def main() -> None:
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    setup = json.loads(sys.stdin.readline())
    site = Site(setup)
    print(json.dumps({"cookie": site.cookie, "pid": os.getpid(), "web": web_words()}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(getattr(site, asked.pop("do"))(**asked)), flush=True)


def web_words() -> list[str]:
    """The web process as the product starts it."""
    from django.conf import settings

    from sparkweb.supervising import programs

    started = programs(settings.VAR, host="127.0.0.1", port=settings.PORT)
    return list(next(one.words for one in started if one.name == "web")[1:])


class Site:
    def __init__(self, setup: Told) -> None:
        from apps.audit.actor import Actor
        from apps.inventory import services as inventory
        from apps.inventory.models import HostKey, Node
        from apps.people.models import User
        from tests.live.conftest import cookie_of

        person = User.objects.create(name="viewer", role="viewer")
        self.cookie = cookie_of(person).decode()
        actor = Actor("person", 1, "bench", "admin")
        key = inventory.make_credential(actor, name="key", private_key=setup["private_key"])
        self.node = Node.objects.create(
            name="node", address="127.0.0.1", port=setup["port"], user=setup["user"], credential=key, state="ready"
        )
        for kind, base64 in setup["host_keys"]:
            HostKey.objects.create(
                node=self.node, type=kind, base64=base64, sha256=f"of {kind}", state=HostKey.State.PINNED
            )
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        from apps.runs import working
        from apps.runs.models import ACTIVE, Run

        while True:
            for run_id in list(
                Run.objects.filter(state__in=ACTIVE).exclude(lease_token="bench").values_list("pk", flat=True)
            ):
                working.slice_of(run_id)
            time.sleep(0.05)

    def begin(self, script: str) -> Told:
        """A run of one job on the node."""
        from apps.plan import steps
        from apps.plan.step import Plan, Stage
        from apps.runs.models import Run, Step
        from apps.shell import Shell

        job = steps.job("flood", "node", "Print", Shell(script), within_s=3600)
        plan = Plan("clear", 0, 0, ("node",), (Stage("Print", "preparing", (job,)),))
        run = Run.objects.create(
            code=secrets.token_hex(5), story="clear", plan=plan.to_json(), digest=plan.digest,
            actor_kind="person", actor_name="bench", actor_role="admin",
        )  # fmt: skip
        Step.objects.create(run=run, stage=0, ordinal=0, key="flood", node=self.node, title="Print", kind="job")
        return {"run": run.pk}

    def told(self, run: int) -> Told:
        """Lines stored, seconds from the first to the last piece but the first look, whether all is stored."""
        from apps.runs.models import Chunk, Run, Stream

        stream = Stream.objects.filter(run=run, name="output").first()
        chunks = Chunk.objects.filter(run=run, stream=stream).order_by("seq") if stream else Chunk.objects.none()
        times = sorted({time.timestamp() for time in chunks.values_list("time", flat=True)})
        later = [count for at, count in chunks.values_list("time", "line_count") if at.timestamp() > times[0]]
        return {
            "lines": sum(chunks.values_list("line_count", flat=True)),
            "later_lines": sum(later) if times else 0,
            "seconds": times[-1] - times[0] if times else 0.0,
            "stored": bool(stream and stream.ended),
            "state": Run.objects.get(pk=run).state,
        }

    def compared(self, lines: int) -> Told:
        """The same masked lines stored in our chunks and one row a line, and 1,000 lines read back from the middle of each."""
        from django.db import connection, transaction

        from apps.diagnosis.masking import mask
        from apps.runs import lines as stored
        from apps.runs.models import Run, Step
        from apps.runs.recorder import Recorder

        batch = b"".join(
            b"%017.6f %08d %s\n" % (time.time(), n, b"one of many lines of an engine " * 3) for n in range(1000)
        )
        run = Run.objects.create(
            code=secrets.token_hex(5), story="clear", state="running", lease_token="bench",
            actor_kind="person", actor_name="bench", actor_role="admin",
        )  # fmt: skip
        Step.objects.create(run=run, stage=0, ordinal=0, key="flood", title="Print", kind="job")
        recorder = Recorder(run, "bench")
        before, began = self._size(), time.process_time()
        for _ in range(lines // 1000):
            recorder.output("flood", offset=recorder.position("flood"), data=batch, ended=False)
        chunks: Told = {"cpu_s": round(time.process_time() - began, 2), "mib": self._size() - before}
        began = time.perf_counter()
        stored.lines(run, after=lines // 2, limit=1000)
        chunks["read_1000_ms"] = round(1000 * (time.perf_counter() - began), 1)
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE bench_line (id integer primary key, run bigint, stream bigint, n bigint, at text, text text)"
            )
            cursor.execute("CREATE UNIQUE INDEX bench_line_n ON bench_line (run, n)")
            before, began, n = self._size(), time.process_time(), 0
            for _ in range(lines // 1000):
                texts = mask(batch).decode("utf-8", "replace").splitlines()
                rows = [(run.pk, 1, n + place, "2026-11-30T12:00:00.000000", text) for place, text in enumerate(texts)]
                n += len(rows)
                with transaction.atomic():
                    cursor.executemany(
                        "INSERT INTO bench_line (run, stream, n, at, text) VALUES (%s, %s, %s, %s, %s)", rows
                    )
            each: Told = {"cpu_s": round(time.process_time() - began, 2), "mib": self._size() - before}
            began = time.perf_counter()
            cursor.execute(
                "SELECT n, at, text FROM bench_line WHERE run = %s AND n > %s ORDER BY n LIMIT 1000",
                (run.pk, lines // 2),
            )
            cursor.fetchall()
            each["read_1000_ms"] = round(1000 * (time.perf_counter() - began), 1)
            cursor.execute("DROP TABLE bench_line")
        Run.objects.filter(pk=run.pk).update(state="cancelled")
        for told in (chunks, each):
            told["mib"] = round(told["mib"], 1)
            told["lines_per_cpu_s"] = round(lines / max(told["cpu_s"], 0.01))
        return {"lines": lines, "chunks": chunks, "one_row_per_line": each}

    def _size(self) -> float:
        """MiB that the database takes, with what it has not folded in yet."""
        from pathlib import Path

        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return Path(connection.settings_dict["NAME"]).stat().st_size / 2**20

    def reread(self, job: str) -> Told:
        """What a viewer costs who gets the file (of it 30 MB) again over SSH, as `docker logs --follow` sends it to each."""
        from apps.inventory import services as inventory
        from apps.runs.working import pool

        transport = pool().get(inventory.endpoint(self.node))
        began, cpu = time.perf_counter(), time.process_time()
        result = transport.run(f"head -c 30000000 ~/.local/state/sparkweb/jobs/{job}/log", timeout_s=120)
        return {
            "seconds": round(time.perf_counter() - began, 2),
            "cpu_s": round(time.process_time() - cpu, 2),
            "mib": round(len(result.stdout) / 2**20, 1),
        }

    def job(self, run: int) -> Told:
        from apps.runs.models import Step

        return {"job": Step.objects.get(run=run, key="flood").job_id}


if __name__ == "__main__":
    main()
