"""The shell texts that detached jobs are made of; jobs.py puts them together and says what the files mean.

POSIX shell, coreutils, grep and /proc only, so that dash, bash and busybox agree. START and CANCEL are format strings.
"""

from __future__ import annotations

# Fields of /proc/PID/stat after the last ")": state is 1, ppid 2, pgrp 3, session 4, starttime 20 (22 in proc(5)).
# `read` and parameter expansion only: no process is started per process seen.
COMMON = r"""
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
carrying() {  # WORDS… -> carriers: processes that have each of these words in their environment, as " pid pid "
  carriers=' '
  for file in $(grep -alsF -- "$1" /proc/[0-9]*/environ 2>/dev/null); do
    for each; do
      tr '\0' '\n' < "$file" 2>/dev/null | grep -qxF -- "$each" || continue 2
    done
    file=${file#/proc/}; carriers="$carriers${file%/environ} "
  done
}
without_folder() { carrying "SPARKWEB_JOB=$1" "HOME=$HOME"; [ "$carriers" != ' ' ]; }
"""

# end_tree TENTHS: TERM the tree of $id, KILL what is left after TENTHS/10 seconds; `tree` then holds who survived.
# Members are kept as "pid:start" over all rounds: a process whose parent died can't be found by its parent any more.
# The mark names the keeper's process and not only the job: two homes of one user may hold jobs of the same id. Where somebody
# deleted the folder and nobody knows the keeper any more, the job's name and the home tell whose a process is.
TREE = r"""
find_tree() {
  procs=
  for stat in /proc/[0-9]*/stat; do
    pid=${stat#/proc/}; pid=${pid%/stat}
    if stat_of "$pid" && [ "$state" != Z ] && [ "$state" != X ]; then procs="$procs $pid:$ppid:$session:$start"; fi
  done
  same_boot && here=yes || here=no
  if [ "$keeper" = - ]; then without_folder "$id"; else carrying "SPARKWEB_KEEPER=$keeper.$keeperstart.$id"; fi
  marked=$carriers
  unit=
  if [ $here = yes ] && [ -e "$dir/scope" ]; then { read -r unit < "$dir/scope"; } 2>/dev/null; fi
  if [ -n "$unit" ]; then  # exact: nobody leaves his control group by a session or an environment of his own
    for file in $(grep -lsF -- "/$unit" /proc/[0-9]*/cgroup 2>/dev/null); do
      file=${file#/proc/}; marked="$marked${file%/cgroup} "
    done
  fi
  root=- rootstart=-
  if [ -e "$dir/child" ] && [ ! -e "$dir/rc" ] && [ $here = yes ]; then
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

# {nonce} also names this candidate's files and ends the here-documents.
START = r"""
mkdir -p "$base" && {{ mkdir "$dir" 2>/dev/null || [ -d "$dir" ]; }} || {{ echo "cannot make $dir" >&2; exit 73; }}
if [ ! -e "$dir/pid" ] && [ ! -e "$dir/cancel" ] && without_folder "$id"; then
  rmdir "$dir" 2>/dev/null  # it runs, and somebody deleted its folder
elif [ ! -e "$dir/pid" ] && [ ! -e "$dir/cancel" ]; then
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
  # Where the user's own systemd stays after a logout, keeper and job get a scope each: logind may then end the login's processes.
  scope= try="systemd-run --user --scope --quiet --collect"
  if [ -e "$linger_path/$(id -un 2>/dev/null)" ] && command -v systemd-run >/dev/null 2>&1; then
    XDG_RUNTIME_DIR=${{XDG_RUNTIME_DIR:-/run/user/$(id -u)}}
    export XDG_RUNTIME_DIR
    if timeout 5 $try "--unit=sparkweb-try-$nonce" true </dev/null >/dev/null 2>&1; then scope=$try; fi
  fi
  "$@" $scope ${{scope:+--unit=sparkweb-keeper-$id-$nonce}} /bin/sh "$dir/wrapper.$nonce" "$dir" "$nonce" "$boot_id_path" \
    {max_seconds} {cap} "$mask" "$scope" "$@" </dev/null >/dev/null 2>&1 &
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

KEEPER = (
    COMMON
    + TREE
    + r"""
# The keeper of one job: claims it, runs it in a session of its own, keeps log, heartbeat and exit code.
umask 077
dir=$1 nonce=$2 boot_id_path=$3 max_seconds=$4 cap=$5 mask=$6 scope=$7
shift 7
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
  SPARKWEB_JOB=$id SPARKWEB_KEEPER=$me.$mystart.$id
  export PYTHONUNBUFFERED TQDM_MININTERVAL COLUMNS SPARKWEB_JOB SPARKWEB_KEEPER
  script=$PWD/script
  umask "$mask"
  cd "$HOME" || cd /
  # An asynchronous command of a shell ignores INT and QUIT; a job should not.
  if env --default-signal=INT,QUIT true 2>/dev/null; then set -- env --default-signal=INT,QUIT "$@"; fi
  exec "$@" $scope ${scope:+"--unit=$unit"} /bin/sh "$script"
}
unit=sparkweb-job-$id-$nonce.scope
[ -z "$scope" ] || printf '%s\n' "$unit" > scope
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

CANCEL = r"""
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

# exited wins over everything; "gone" is believed only after a second look at rc, which the keeper writes as it leaves.
LOOK = r"""
judge() {  # of $dir -> state size code pid boot reason note
  verdict=missing size=0 code=- keeper=- keeperstart=- boot=- reason=- note=-
  { read -r keeper keeperstart boot < "$dir/pid"; } 2>/dev/null
  if [ "$keeper" = - ] && [ ! -e "$dir/rc" ] && [ ! -e "$dir/cancel" ]; then
    if without_folder "${dir##*/}"; then verdict=running note=log_gone; fi  # the keeper may have made a new one for its heartbeat
    return 0
  fi
  if [ ! -e "$dir/rc" ] && [ "$keeper" != - ]; then
    boot_id_now
    size_of "$dir/log"
    verdict=running
    if [ "$boot" != "$boot_now" ]; then verdict=lost reason=rebooted
    elif ! lives "$keeper" "$keeperstart"; then verdict=lost reason=killed; fi
    [ $verdict = lost ] && [ ! -e "$dir/rc" ] && size_of "$dir/log"
  fi
  if [ -e "$dir/rc" ]; then
    { read -r code said < "$dir/rc"; } 2>/dev/null
    said=${said%% *}
    size_of "$dir/log"
    if [ "$size" -lt "$said" ]; then note=log_gone; else size=$said; fi
    verdict=exited reason=-
  elif [ "$keeper" = - ] && [ -e "$dir/cancel" ]; then
    verdict=exited code=143
  fi
  if [ $note != - ]; then :
  elif [ -e "$dir/log.lost" ]; then note=log_lost
  elif [ -e "$dir/log.capped" ]; then note=log_capped; fi
}
look() {  # ID OFFSET LIMIT
  dir=$base/$1
  judge
  length=$((size - $2))
  if [ $length -lt 0 ]; then [ $note = log_gone ] || note=log_shrunk; length=0; fi
  if [ $length -gt "$3" ]; then length=$3; fi
  printf '%s %s %s %s %s %s %s %s %s\n' "$nonce" "$1" "$verdict" "$size" "$code" "$keeper" "$boot" "$reason" "$note"
  if [ $length -gt 0 ]; then tail -c "+$(($2 + 1))" "$dir/log" 2>/dev/null | head -c "$length"; fi
  printf '%s.\n' "$nonce"
}
"""

REMOVE = r"""
judge
if [ $verdict = running ]; then exit 76; fi
rm -rf "$dir"
"""
