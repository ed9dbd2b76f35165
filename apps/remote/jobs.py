"""Detached jobs on a node: started exactly once by their id, followed by byte offset, ended as a whole tree.

A job is a folder `~/.local/state/sparkweb/jobs/<id>/` on the node. Needed there: a POSIX shell, coreutils, grep and
/proc; `setsid` (else perl or python3) lets the job outlive its login. In the folder:

- the folder itself is the idempotency key: whoever finds it only completes or looks;
- `pid`: "pid starttime boot_id" of the job's keeper, made by a hard link, which only one candidate can win. It is both
  the claim and the record, so there is no instant at which a job is claimed and nobody knows by whom;
- `child`: "pid starttime" of the job's own process, the leader of a session of its own;
- `script`: what runs; `env.*`: its environment, 0600, removed as soon as it was read;
- `log`: both outputs merged, raw, at most LARGEST_LOG bytes; `log.capped` or `log.lost` says that there was more;
- `hb`: touched every 5 s;
- `rc`: "exit-code size-of-log", by rename, its space taken beforehand so that a full disk can't prevent it;
- `cancel`: somebody asked for the end; a start that comes later does not happen any more.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from secrets import token_hex

from apps.remote.transport import ConnectionLost, JobLook, RemoteError, Result, Transport

BOOT_ID = "/proc/sys/kernel/random/boot_id"
LARGEST_LOG = 1 << 30  # bytes
START_WITHIN_S = 30

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class JobNotStarted(RemoteError):
    """The node was reached but can't hold the job: `disk_full`, or `exited` with what the node said."""


class NodeJobs:
    """`transport.Jobs` over a Transport. `boot_id_path` is for tests of a reboot."""

    def __init__(self, transport: Transport, *, boot_id_path: str = BOOT_ID, timeout_s: float = 60.0) -> None:
        self._transport, self._boot_id_path, self._timeout_s = transport, boot_id_path, timeout_s

    def start(
        self,
        job_id: str,
        script: str,
        *,
        environment: Mapping[str, str] | None = None,
        max_seconds: int | None = None,
    ) -> JobLook:
        """Start the script as a detached job, or only look when this id was started before.

        `environment` (may hold secrets) travels on standard input into a 0600 file. After `max_seconds` the job's tree is
        ended on the node itself and the exit code is 124. Raises ValueError for a bad id or variable name,
        JobNotStarted, RemoteError.
        """
        _check_id(job_id)
        nonce = token_hex(8)
        text = _header(job_id, self._boot_id_path, nonce) + _START.format(
            nonce=nonce,
            wrapper=_WRAPPER.rstrip("\n"),
            script=_sound("script", script),
            exports=_exports(environment or {}),
            max_seconds=int(max_seconds or 0),
            cap=LARGEST_LOG,
            tries=START_WITHIN_S * 10,
        )
        result = self._run(text + _LOOK + f"look {job_id} 0 0\n", START_WITHIN_S + self._timeout_s)
        if result.exit_code != 0:
            raise self._not_started(job_id, result)
        return _parsed(result.stdout, nonce, [(job_id, 0)])[0]

    def look(self, asked: Sequence[tuple[str, int]], *, limit: int = 262144) -> list[JobLook]:
        """Many jobs in one round trip, each with at most `limit` bytes from its offset.

        `exited` and `lost` are only told together with the last byte: while `data` does not reach `size`, the job still
        counts as running, so a caller who reads on until another state has everything. With limit 0 the bare state
        is told.
        A log that is smaller than the offset gives no data and the note `log_shrunk`; it never makes anybody wait.
        """
        if not asked:
            return []
        for job_id, offset in asked:
            _check_id(job_id)
            if offset < 0 or limit < 0:
                raise ValueError(f"{job_id}: offset and limit must not be negative")
        nonce = token_hex(8)
        calls = "".join(f"look {job_id} {offset} {limit}\n" for job_id, offset in asked)
        result = self._run(_header(asked[0][0], self._boot_id_path, nonce) + _LOOK + calls, self._timeout_s)
        looks = _parsed(result.stdout, nonce, asked)
        return looks if limit == 0 else [_drained(look, offset) for look, (_, offset) in zip(looks, asked, strict=True)]

    def cancel(self, job_id: str, *, grace_s: float = 10.0) -> JobLook:
        """End the job's whole tree: TERM, after `grace_s` seconds KILL, and look again by start time. Idempotent.

        Found are the job's session, all descendants, and every process that carries SPARKWEB_JOB=<id>, so a child that
        made itself a session of its own is ended too. A job that was never started never will be: it reads as
        exited, 143.
        Raises JobNotStarted(reason `cleanup_incomplete`) naming the processes that survived.
        """
        _check_id(job_id)
        nonce = token_hex(8)
        text = _header(job_id, self._boot_id_path, nonce) + _TREE + _CANCEL.format(tenths=max(1, round(grace_s * 10)))
        result = self._run(text + _LOOK + f"look {job_id} 0 0\n", grace_s + 20.0 + self._timeout_s)
        if result.exit_code == 75:
            said = result.stderr.decode(errors="replace").strip()
            raise JobNotStarted("cleanup_incomplete", hop=self._transport.name, evidence=f"{job_id}: {said}")
        if result.exit_code != 0:
            raise self._not_started(job_id, result)
        return _parsed(result.stdout, nonce, [(job_id, 0)])[0]

    def remove(self, job_id: str) -> None:
        """Delete the job's folder. Raises ValueError when the job still runs; fine when there is none."""
        _check_id(job_id)
        nonce = token_hex(8)
        result = self._run(_header(job_id, self._boot_id_path, nonce) + _LOOK + _REMOVE, self._timeout_s)
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
        f"dir=$base/$id\nboot_id_path={shlex.quote(boot_id_path)}\n" + _COMMON
    )


def _parsed(output: bytes, nonce: str, asked: Sequence[tuple[str, int]]) -> list[JobLook]:
    """Frames are `NONCE fields\\n`, raw bytes, `NONCE.\\n`; the nonce is random, so no data can hold it."""
    begin, end = f"{nonce} ".encode(), f"{nonce}.\n".encode()
    looks, at = [], 0
    for job_id, _ in asked:
        start = output.find(begin, at)
        line = output.find(b"\n", start)
        stop = output.find(end, line)
        if min(start, line, stop) < 0:
            raise ConnectionLost("ssh_timeout", hop=job_id, evidence="the answer about jobs ended in the middle")
        looks.append(_one(output[start:line].decode(), output[line + 1 : stop]))
        at = stop + len(end)
    return looks


def _one(header: str, data: bytes) -> JobLook:
    _, job_id, state, size, code, pid, boot_id, reason, note = header.split(" ")
    return JobLook(
        id=job_id,
        state=state,
        data=data,
        size=int(size),
        exit_code=int(code) if code != "-" else None,
        reason=None if reason == "-" else reason,
        pid=int(pid) if pid != "-" else None,
        boot_id=None if boot_id == "-" else boot_id,
        note=None if note == "-" else note,
    )


def _drained(look: JobLook, offset: int) -> JobLook:
    if look.state in ("exited", "lost") and offset + len(look.data) < look.size:
        return replace(look, state="running", exit_code=None, reason=None)
    return look


# Fields of /proc/PID/stat after the last ")": state is 1, ppid 2, pgrp 3, session 4, starttime 20 (field 22 of
# proc(5)).
# `read` and parameter expansion only: no process is started per process seen.
_COMMON = r"""
stat_of() {  # PID -> state ppid session start; fails when there is no such process
  line=
  { read -r line < "/proc/$1/stat"; } 2>/dev/null || return 1
  case $line in *') '*) ;; *) line=$(tr '\n' ' ' < "/proc/$1/stat" 2>/dev/null) || return 1 ;; esac
  set -- ${line##*) }
  state=$1 ppid=$2 session=$4
  shift 19 2>/dev/null || return 1
  start=$1
}
lives() {  # PID START: that very process, and not as a zombie
  stat_of "$1" && [ "$start" = "$2" ] && [ "$state" != Z ] && [ "$state" != X ]
}
boot_id_now() { boot_now=-; { read -r boot_now < "$boot_id_path"; } 2>/dev/null; boot_now=${boot_now:--}; }
size_of() { size=$(wc -c < "$1" 2>/dev/null) || size=0; size=$((${size:-0})); }
"""

# {nonce} also names this candidate's files and ends the here-documents.
_START = r"""
mkdir -p "$base" && {{ mkdir "$dir" 2>/dev/null || [ -d "$dir" ]; }} || {{ echo "cannot make $dir" >&2; exit 73; }}
if [ ! -e "$dir/pid" ] && [ ! -e "$dir/cancel" ]; then
  cat > "$dir/wrapper.$nonce" <<'{nonce}' || exit 74
{wrapper}
{nonce}
  cat > "$dir/script.$nonce" <<'{nonce}' || exit 74
{script}
{nonce}
  cat > "$dir/env.$nonce" <<'{nonce}' || {{ rm -f "$dir/env.$nonce"; exit 74; }}
{exports}
{nonce}
  if command -v setsid >/dev/null 2>&1; then set -- setsid
  elif command -v perl >/dev/null 2>&1; then set -- perl -e 'use POSIX; POSIX::setsid(); exec @ARGV'
  elif command -v python3 >/dev/null 2>&1; then set -- python3 -c \
      'import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])'
  else set -- nohup; fi
  "$@" /bin/sh "$dir/wrapper.$nonce" "$dir" "$nonce" "$boot_id_path" {max_seconds} {cap} "$mask" "$@" \
    </dev/null >/dev/null 2>&1 &
  tries={tries}
  until [ -e "$dir/pid" ]; do
    tries=$((tries - 1))
    if [ $tries -le 0 ]; then
      rm -f "$dir/env.$nonce"
      echo "the job did not begin in time: is there space, and are hard links allowed in $dir?" >&2
      exit 74
    fi
    sleep 0.1 2>/dev/null || sleep 1
  done
fi
"""

_WRAPPER = (
    _COMMON
    + r"""
# The keeper of one job: claims it, runs it in a session of its own, keeps log, heartbeat and exit code.
umask 077
dir=$1 nonce=$2 boot_id_path=$3 max_seconds=$4 cap=$5 mask=$6
shift 6
id=${dir##*/}
me=$$
cd "$dir" || exit 1
boot_id_now
stat_of $me || exit 1
mystart=$start
printf '%s %s %s\n' "$me" "$mystart" "$boot_now" > "pid.$nonce" && printf '%63s\n' '' > "rc.$nonce" || exit 1
if ! ln "pid.$nonce" pid 2>/dev/null; then
  rm -f "pid.$nonce" "rc.$nonce" "env.$nonce" "script.$nonce" "wrapper.$nonce"
  exit 0
fi
rm -f "pid.$nonce"
mv -f "script.$nonce" script
mv -f "wrapper.$nonce" wrapper
mv -f "rc.$nonce" rc.new
: >> log
finish() {
  size_of log
  printf '%-63s\n' "$1 $size" 1<> rc.new
  mv -f rc.new rc
  rm -f env.* script.?* wrapper.?* pid.?* drained
  exit 0
}
if [ -e cancel ]; then rm -f env.*; finish 143; fi

rm -f out
mkfifo out || { echo "cannot make a pipe" >> log; finish 125; }
keep_log() {
  if [ "$(printf abc | dd bs=3 count=2 iflag=count_bytes 2>/dev/null)" = ab ]; then
    dd bs=65536 count="$cap" iflag=count_bytes >> log 2>/dev/null || : > log.lost
    size_of log
    if [ -e log.lost ] || [ "$size" -ge "$cap" ]; then
      more=$(head -c 1 | wc -c)
      if [ "$more" -gt 0 ] && [ ! -e log.lost ]; then : > log.capped; fi
    fi
  else
    cat >> log || : > log.lost
  fi
  cat > /dev/null
  : > drained
}
keep_log < out &

begin() {  # in the child: its environment, then its own session
  . "./env.$nonce"
  rm -f env.*
  : "${PYTHONUNBUFFERED=1}" "${TQDM_MININTERVAL=1}" "${COLUMNS=120}"
  SPARKWEB_JOB=$id
  export PYTHONUNBUFFERED TQDM_MININTERVAL COLUMNS SPARKWEB_JOB
  script=$PWD/script
  umask "$mask"
  cd "$HOME" || cd /
  # An asynchronous command of a shell ignores INT and QUIT; a job should not.
  if env --default-signal=INT,QUIT true 2>/dev/null; then set -- env --default-signal=INT,QUIT "$@"; fi
  exec "$@" /bin/sh "$script"
}
begin "$@" </dev/null > out 2>&1 &
child=$!
stat_of $child && printf '%s %s\n' "$child" "$start" > child

tick=5
if [ "$max_seconds" -gt 0 ] && [ "$max_seconds" -lt 60 ]; then tick=1; fi
heartbeat() {
  trap 'kill $nap 2>/dev/null; exit 0' TERM
  passed=0
  while lives $me "$mystart"; do
    touch hb
    sleep $tick & nap=$!
    wait $nap
    passed=$((passed + tick))
    if [ "$max_seconds" -gt 0 ] && [ $passed -ge "$max_seconds" ]; then
      : > too_long
      end_tree 100
      max_seconds=0
    fi
  done
}
heartbeat &
beat=$!

wait $child
code=$?
tries=50  # what it left in the background may hold the pipe: five seconds, then the log is closed
until [ -e drained ] || [ $tries -le 0 ]; do
  tries=$((tries - 1))
  sleep 0.1 2>/dev/null || sleep 1
done
if [ -e too_long ]; then
  code=124
fi
while [ -e too_long ] && [ ! -e ended ]; do sleep 1; done
kill $beat 2>/dev/null
rm -f out
finish $code
"""
)

# end_tree TENTHS: TERM the tree of $id, KILL what is left after TENTHS/10 seconds; `tree` then holds who survived.
# Members are kept as "pid:start" over all rounds: a process whose parent died can't be found by its parent any more.
_TREE = r"""
find_tree() {
  procs=
  for stat in /proc/[0-9]*/stat; do
    pid=${stat#/proc/}; pid=${pid%/stat}
    if stat_of "$pid" && [ "$state" != Z ] && [ "$state" != X ]; then procs="$procs $pid:$ppid:$session:$start"; fi
  done
  marked=' '
  for file in $(grep -alsF -- "SPARKWEB_JOB=$id" /proc/[0-9]*/environ 2>/dev/null); do
    if tr '\0' '\n' < "$file" 2>/dev/null | grep -qxF -- "SPARKWEB_JOB=$id"; then
      file=${file#/proc/}; marked="$marked${file%/environ} "
    fi
  done
  root=- rootstart=-
  if [ -e "$dir/child" ] && [ ! -e "$dir/rc" ] && same_boot; then
    { read -r root rootstart < "$dir/child"; } 2>/dev/null
    # Its number may have been given to somebody else since.
    if stat_of "$root" && [ "$start" != "$rootstart" ]; then root=-; fi
  fi
  grown=yes
  while [ $grown = yes ]; do
    grown=no
    for proc in $procs; do
      pid=${proc%%:*} rest=${proc#*:}
      ppid=${rest%%:*} rest=${rest#*:}
      session=${rest%%:*} start=${rest#*:}
      case $tree in *" $pid:$start "*) continue ;; esac
      case "$marked" in *" $pid "*) ;; *)
        if [ "$pid" != "$root" ] && [ "$session" != "$root" ]; then
          case $tree in *" $ppid:"*) ;; *) continue ;; esac
        fi ;;
      esac
      tree="$tree$pid:$start "
      grown=yes
    done
  done
}
same_boot() {
  keeper=- keeperstart=- boot=-
  { read -r keeper keeperstart boot < "$dir/pid"; } 2>/dev/null
  boot_id_now
  [ "$boot" = "$boot_now" ]
}
signal_tree() {  # SIGNAL: send it to all members that still live and forget the others
  left=' '
  for member in $tree; do
    if lives "${member%%:*}" "${member#*:}"; then
      [ -n "$1" ] && kill -"$1" "${member%%:*}" 2>/dev/null
      left="$left$member "
    fi
  done
  tree=$left
}
end_tree() {
  tree=' '
  find_tree
  signal_tree TERM
  wait_tenths=$1
  while [ "$tree" != ' ' ] && [ $wait_tenths -gt 0 ]; do
    sleep 0.1 2>/dev/null || { sleep 1; wait_tenths=$((wait_tenths - 9)); }
    wait_tenths=$((wait_tenths - 1))
    signal_tree ''
  done
  rounds=30  # one may fork while it is being killed
  while find_tree; [ "$tree" != ' ' ] && [ $rounds -gt 0 ]; do
    signal_tree KILL
    sleep 0.1 2>/dev/null || sleep 1
    signal_tree ''
    rounds=$((rounds - 1))
  done
  : > "$dir/ended"
}
"""

_CANCEL = r"""
mkdir -p "$base" && {{ mkdir "$dir" 2>/dev/null || [ -d "$dir" ]; }} || {{ echo "cannot make $dir" >&2; exit 73; }}
: > "$dir/cancel"
end_tree {tenths}
if [ "$tree" != ' ' ]; then echo "still alive after KILL:$tree" >&2; exit 75; fi
# The keeper now sees the end, drains the log and writes the exit code.
if same_boot; then
  tries=100
  while [ ! -e "$dir/rc" ] && lives "$keeper" "$keeperstart" && [ $tries -gt 0 ]; do
    tries=$((tries - 1))
    sleep 0.1 2>/dev/null || sleep 1
  done
  if [ ! -e "$dir/rc" ] && lives "$keeper" "$keeperstart"; then kill -KILL "$keeper" 2>/dev/null; sleep 1; fi
fi
rm -f "$dir"/env.*
"""

# exited wins over everything; "gone" is believed only after a second look at rc, which the keeper writes before it
# leaves.
_LOOK = r"""
judge() {  # of $dir -> state size code pid boot reason note
  verdict=missing size=0 code=- keeper=- keeperstart=- boot=- reason=- note=-
  [ -d "$dir" ] || return 0
  { read -r keeper keeperstart boot < "$dir/pid"; } 2>/dev/null
  if [ ! -e "$dir/rc" ] && [ "$keeper" != - ]; then
    boot_id_now
    size_of "$dir/log"
    verdict=running
    if [ "$boot" != "$boot_now" ]; then verdict=lost reason=rebooted
    elif ! lives "$keeper" "$keeperstart"; then verdict=lost reason=killed; fi
    [ $verdict = lost ] && [ ! -e "$dir/rc" ] && size_of "$dir/log"
  fi
  if [ -e "$dir/rc" ]; then
    { read -r code size < "$dir/rc"; } 2>/dev/null
    size=${size%% *}
    verdict=exited reason=-
  elif [ "$keeper" = - ] && [ -e "$dir/cancel" ]; then
    verdict=exited code=143
  fi
  if [ -e "$dir/log.lost" ]; then note=log_lost
  elif [ -e "$dir/log.capped" ]; then note=log_capped; fi
}
look() {  # ID OFFSET LIMIT
  dir=$base/$1
  judge
  length=$((size - $2))
  if [ $length -lt 0 ]; then note=log_shrunk; length=0; fi
  if [ $length -gt "$3" ]; then length=$3; fi
  printf '%s %s %s %s %s %s %s %s %s\n' "$nonce" "$1" "$verdict" "$size" "$code" "$keeper" "$boot" "$reason" "$note"
  if [ $length -gt 0 ]; then tail -c "+$(($2 + 1))" "$dir/log" 2>/dev/null | head -c "$length"; fi
  printf '%s.\n' "$nonce"
}
"""

_REMOVE = r"""
judge
if [ $verdict = running ]; then exit 76; fi
rm -rf "$dir"
"""

_WRAPPER = _WRAPPER.replace("# The keeper of one job", _TREE + "\n# The keeper of one job", 1)
