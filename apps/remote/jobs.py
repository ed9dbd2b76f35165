"""Detached jobs on a node: started exactly once by their id, followed by byte offset, ended as a whole tree.

A job is a folder `~/.local/state/sparkweb/jobs/<id>/` on the node. Needed there: a POSIX shell, coreutils, grep and
/proc; `setsid` (else perl or python3) lets the job outlive its login. In the folder:

- the folder itself is the idempotency key: whoever finds it only completes or looks;
- `pid`: "pid starttime boot_id" of the job's keeper, made by a hard link, which only one candidate can win. It is both
  the claim and the record, so there is no instant at which a job is claimed and nobody knows by whom;
- `child`: "pid starttime" of the job's own process, the leader of a session of its own;
- `script`: what runs; `env.*`: its environment, 0600, removed as soon as it was read;
- `log`: both outputs merged, raw, at most so many bytes as the start said; `log.capped` or `log.lost` says that there was more;
- `hb`: touched every 5 s;
- `rc`: "exit-code size-of-log", by rename, its space taken beforehand so that a full disk can't prevent it;
- `scope`: the systemd scope of the job, where the user's own systemd lives on without a login (`loginctl enable-linger`): its
  control group tells exactly who belongs to the job;
- `cancel`: somebody asked for the end; a start that comes later does not happen any more.

Where somebody deleted the folder of a job that runs, its processes still say whose they are: it is told as running with the note
`log_gone`, is not started a second time, and can be ended. Without such a process it is `missing`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from secrets import token_hex

from apps.remote import keeper
from apps.remote.transport import BadAnswer, ConnectionLost, JobLook, RemoteError, Result, Transport

BOOT_ID = "/proc/sys/kernel/random/boot_id"
LINGER = "/var/lib/systemd/linger"
LARGEST_LOG = 1 << 30  # bytes, unless told otherwise
START_WITHIN_S = 30

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FRAME = re.compile(  # size, code, pid, boot id, reason, note, as keeper.LOOK prints them
    r"(?P<state>missing|running|exited|lost) (?P<size>[0-9]{1,18}) (?P<code>-|[0-9]{1,4}) (?P<pid>-|[0-9]{1,10})"
    r" (?P<boot_id>[\x21-\x7e]{1,64}) (?P<reason>-|[a-z_]{1,40}) (?P<note>-|[a-z_]{1,40})"
)


class JobNotStarted(RemoteError):
    """The node was reached but can't hold the job: `disk_full`, or `exited` with what the node said."""


class JobNotEnded(RemoteError):
    """`cleanup_incomplete`: processes of the job outlived KILL; the evidence names them as pid:starttime."""


class NodeJobs:
    """`transport.Jobs` over a Transport. `boot_id_path` and `linger_path` are for tests of a reboot, and of a systemd;
    `largest_log` is in bytes."""

    def __init__(
        self,
        transport: Transport,
        *,
        boot_id_path: str = BOOT_ID,
        linger_path: str = LINGER,
        timeout_s: float = 60.0,
        largest_log: int = LARGEST_LOG,
    ) -> None:
        self._largest_log = largest_log
        self._transport, self._boot_id_path, self._timeout_s = transport, boot_id_path, timeout_s
        self._linger_path = linger_path

    def start(
        self,
        job_id: str,
        script: str,
        *,
        environment: Mapping[str, str] | None = None,
        max_seconds: int | None = None,
    ) -> JobLook:
        """Start the script as a detached job, or only look when this id was started before.

        `environment` (may hold secrets) travels on standard input into a 0600 file. After `max_seconds` the job's tree
        is ended on the node itself and the exit code is 124. Raises ValueError for a bad id or variable name,
        JobNotStarted, RemoteError.
        """
        _check_id(job_id)
        nonce = token_hex(8)
        head = _header(job_id, self._boot_id_path, nonce) + f"linger_path={shlex.quote(self._linger_path)}\n"
        text = head + keeper.START.format(
            nonce=nonce,
            wrapper=keeper.KEEPER.rstrip("\n"),
            script=_sound("script", script),
            exports=_exports(environment or {}),
            max_seconds=int(max_seconds or 0),
            cap=self._largest_log,
            tries=START_WITHIN_S * 10,
        )
        result = self._run(text + keeper.LOOK + f"look {job_id} 0 0\n", START_WITHIN_S + self._timeout_s)
        if result.exit_code != 0:
            raise self._not_started(job_id, result)
        return self._parsed(result.stdout, nonce, [(job_id, 0)])[0]

    def look(self, asked: Sequence[tuple[str, int]], *, limit: int = 262144) -> list[JobLook]:
        """Many jobs in one round trip, each with at most `limit` bytes from its offset.

        `exited` and `lost` are only told together with the last byte: while `data` does not reach `size`, the job
        still counts as running, so a caller who reads on until another state has everything. With limit 0 the bare
        state is told. A log that is smaller than the offset gives no data and the note `log_shrunk`; it never makes
        anybody wait.
        """
        if not asked:
            return []
        for job_id, offset in asked:
            _check_id(job_id)
            if offset < 0 or limit < 0:
                raise ValueError(f"{job_id}: offset and limit must not be negative")
        nonce = token_hex(8)
        calls = "".join(f"look {job_id} {offset} {limit}\n" for job_id, offset in asked)
        result = self._run(_header(asked[0][0], self._boot_id_path, nonce) + keeper.LOOK + calls, self._timeout_s)
        looks = self._parsed(result.stdout, nonce, asked)
        return looks if limit == 0 else [_drained(look, offset) for look, (_, offset) in zip(looks, asked, strict=True)]

    def cancel(self, job_id: str, *, grace_s: float = 10.0) -> JobLook:
        """End the job's whole tree: TERM, after `grace_s` seconds KILL, and look again by start time. Idempotent.

        Found are the job's session, all descendants, and every process that carries the mark of its keeper, so a
        child that made itself a session of its own is ended too. A job that was never started never will be: it reads
        as exited, 143. Raises JobNotEnded naming the processes that survived, RemoteError.
        """
        _check_id(job_id)
        nonce = token_hex(8)
        end = keeper.CANCEL.format(tenths=max(1, round(grace_s * 10)))
        text = _header(job_id, self._boot_id_path, nonce) + keeper.TREE + end
        result = self._run(text + keeper.LOOK + f"look {job_id} 0 0\n", grace_s + 20.0 + self._timeout_s)
        if result.exit_code == 75:
            said = result.stderr.decode(errors="replace").strip()
            raise JobNotEnded("cleanup_incomplete", hop=self._transport.name, evidence=f"{job_id}: {said}")
        if result.exit_code != 0:
            raise self._not_started(job_id, result)
        return self._parsed(result.stdout, nonce, [(job_id, 0)])[0]

    def remove(self, job_id: str) -> None:
        """Delete the job's folder. Raises ValueError when the job still runs; fine when there is none."""
        _check_id(job_id)
        nonce = token_hex(8)
        result = self._run(_header(job_id, self._boot_id_path, nonce) + keeper.LOOK + keeper.REMOVE, self._timeout_s)
        if result.exit_code == 76:
            raise ValueError(f"{job_id} still runs on {self._transport.name}: cancel it first")
        if result.exit_code != 0:
            raise self._not_started(job_id, result)

    def _run(self, text: str, timeout_s: float) -> Result:
        result = self._transport.run(text, timeout_s=timeout_s)
        if result.exit_code is None:
            evidence = f"no answer about a job within {timeout_s:g} s"
            raise ConnectionLost("ssh_timeout", hop=self._transport.name, evidence=evidence)
        return result

    def _parsed(self, output: bytes, nonce: str, asked: Sequence[tuple[str, int]]) -> list[JobLook]:
        """Frames are `NONCE fields\\n`, raw bytes, `NONCE.\\n`; the nonce is random, so no data can hold it."""
        begin, end = f"{nonce} ".encode(), f"{nonce}.\n".encode()
        looks, at = [], 0
        for job_id, _ in asked:
            start = output.find(begin, at)
            line = output.find(b"\n", start)
            stop = output.find(end, line)
            if min(start, line, stop) < 0:
                evidence = "the answer about jobs ended in the middle"
                raise ConnectionLost("ssh_timeout", hop=self._transport.name, evidence=evidence)
            looks.append(_one(self._transport.name, job_id, output[start + len(begin) : line], output[line + 1 : stop]))
            at = stop + len(end)
        return looks

    def _not_started(self, job_id: str, result: Result) -> JobNotStarted:
        said = result.stderr.decode(errors="replace").strip()[-2000:] or f"exit code {result.exit_code}"
        full = "No space left" in said or "Disk quota" in said
        return JobNotStarted("disk_full" if full else "exited", hop=self._transport.name, evidence=f"{job_id}: {said}")


def _check_id(job_id: str) -> None:
    if not _ID.fullmatch(job_id):
        raise ValueError(f"{job_id!r} is no job id: up to 100 letters, digits, dots, dashes and underscores")


def _sound(what: str, text: str) -> str:
    if "\0" in text:
        raise ValueError(f"the {what} of a job holds a NUL byte, which no shell can carry")
    return text


def _exports(environment: Mapping[str, str]) -> str:
    for name in environment:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an environment variable")
    return "\n".join(f"export {name}={shlex.quote(_sound(name, value))}" for name, value in environment.items())


def _header(job_id: str, boot_id_path: str, nonce: str) -> str:
    return (
        f"mask=$(umask)\numask 077\nid={job_id}\nnonce={nonce}\nbase=$HOME/.local/state/sparkweb/jobs\n"
        f"dir=$base/$id\nboot_id_path={shlex.quote(boot_id_path)}\n" + keeper.COMMON
    )


def _one(node: str, job_id: str, header: bytes, data: bytes) -> JobLook:
    """One frame. Raises BadAnswer for anything else: a node that was taken over may print what it likes."""
    said_id, _, rest = header.decode("ascii", "replace").partition(" ")
    found = _FRAME.fullmatch(rest)
    if found is None or said_id != job_id:
        evidence = f"about the job {job_id} the node said {header[:200].decode('utf-8', 'replace')!r}"
        raise BadAnswer("bad_answer", hop=node, evidence=evidence)
    words = {name: None if word == "-" else word for name, word in found.groupdict().items()}
    return JobLook(
        id=job_id,
        state=found["state"],
        data=data,
        size=int(found["size"]),
        exit_code=int(words["code"]) if words["code"] else None,
        reason=words["reason"],
        pid=int(words["pid"]) if words["pid"] else None,
        boot_id=words["boot_id"],
        note=words["note"],
    )


def _drained(look: JobLook, offset: int) -> JobLook:
    if look.state in ("exited", "lost") and offset + len(look.data) < look.size:
        return replace(look, state="running", exit_code=None, reason=None)
    return look
