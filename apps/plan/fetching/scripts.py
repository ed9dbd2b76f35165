# ruff: noqa: E501 (a shell statement stays on its line)
"""The scripts of a fetch, in POSIX sh with awk and curl alone: fixed text, their values quoted in front of it.

A cache keeps `blobs/ETAG`, `snapshots/COMMIT/PATH` (links to blobs) and `refs/BRANCH`, as the hub's own tools do. Here a
snapshot appears as a whole: files are fetched into `blobs/ETAG.incomplete`, from where they go on after a cut; each takes its
final name after its hash is right; the snapshot is put together aside and renamed; last comes `sparkweb/COMMIT.json`, the
manifest that says complete. While it is fetched, `sparkweb/COMMIT.part` holds the list of files (ETAG SIZE KIND PATH, with
tabs) and what was verified (ETAG SHA-256).

The token is in the environment only; curl reads it from its standard input, and it is sent to the hub's own address alone.
"""

from __future__ import annotations

import shlex
from urllib.parse import quote

from apps.plan.fetching.wish import HUB, Wish
from apps.shell import Shell

COMMIT_VARIABLE = "SPARKWEB_COMMIT"
TOKEN_VARIABLE = "HF_TOKEN"  # noqa: S105 - a variable's name
GIB = 1 << 30

_COMMON = r"""
LC_ALL=C; export LC_ALL
pause=${SPARKWEB_PAUSE_S:-2}
tab=$(printf '\t')
fail() { printf 'sparkweb: %s: %s\n' "$1" "$2"; exit 1; }
say() { printf '%s\n' "$*"; }
[ -n "$hub" ] || hub=${HF_HUB_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}/hub}
home=$hub/$name
size_of() { if [ -f "$1" ]; then wc -c <"$1" | tr -d ' '; else echo 0; fi; }
human() { awk -v n="$1" 'BEGIN { split("B kB MB GB TB", u, " "); i = 1; while (n >= 1000 && i < 5) { n /= 1000; i++ } printf(i == 1 ? "%d %s" : "%.1f %s", n, u[i]) }'; }
free_bytes() { df -Pk "$1" 2>/dev/null | awk 'NR > 1 && $(NF - 2) ~ /^[0-9]+$/ { printf "%.0f", $(NF - 2) * 1024; exit }'; }
places() {
  case $SPARKWEB_COMMIT in *[!0-9a-f]*) fail bad_answer "the commit is no commit";; esac
  [ "${#SPARKWEB_COMMIT}" -eq 40 ] || fail bad_answer "no commit was found by the step before"
  commit=$SPARKWEB_COMMIT; work=$home/sparkweb/$commit.part; manifest=$home/sparkweb/$commit.json
}
alone() {
  mkdir -p "$hub/.locks/$name" || fail permission_denied "$hub can't be written"
  lock=$hub/.locks/$name/sparkweb-$commit.lock
  if command -v flock >/dev/null 2>&1; then
    exec 9>"$lock" || fail permission_denied "$lock can't be written"
    flock -n 9 || { say "this revision is being fetched here already; waiting until that has ended"; flock 9; }
    return 0
  fi
  until mkdir "$lock.d" 2>/dev/null; do
    held=$(cat "$lock.d/pid" 2>/dev/null || :)
    if [ -n "$held" ] && ! kill -0 "$held" 2>/dev/null; then say "a lock was left by process $held, which is gone"; rm -rf "$lock.d"; continue; fi
    [ -n "${told:-}" ] || say "this revision is being fetched here already; waiting until that has ended"
    told=1; sleep 1
  done
  printf '%s\n' $$ >"$lock.d/pid"
}
unlock() { [ -z "${lock:-}" ] || rm -rf "$lock.d"; }
with_token() {
  [ -z "${HF_TOKEN:-}" ] || printf 'header = "Authorization: Bearer %s"\n' "$HF_TOKEN"
}
check_token() {
  case ${HF_TOKEN:-} in *[!A-Za-z0-9_.~+/=-]*) fail hub_auth "the secret is not shaped like a token: it holds other characters than one can";; esac
  [ -n "${HF_TOKEN:-}" ] || unset HF_TOKEN
}
header() { awk -v want="$2" 'tolower($1) == want ":" { sub(/^[^:]*:[ \t]*/, ""); sub(/\r$/, ""); found = $0 } END { print found }' "$1" 2>/dev/null; }
# refusal STATUS HEADERS WHAT: the reason and the words of an answer that no second try changes
refusal() {
  error=$(header "$2" x-error-code)
  case $1/$error in
    401/GatedRepo) echo "hub_auth: $3 is gated and the hub wants a token: it answered 401 (GatedRepo)";;
    403/GatedRepo) echo "hub_gated: $3 is gated and this token's account has no access: the hub answered 403 (GatedRepo)";;
    */RepoNotFound) if [ -n "${HF_TOKEN:-}" ]; then echo "hub_missing: the hub knows no model $repo, or does not show it to this token: it answered $1 (RepoNotFound)"
      else echo "hub_missing: the hub knows no model $repo, or it is private and wants a token: it answered $1 (RepoNotFound)"; fi;;
    */RevisionNotFound) echo "hub_missing: the hub knows no revision $revision of $repo: it answered $1 (RevisionNotFound)";;
    401/*) echo "hub_auth: the hub did not accept the request for $3: it answered 401";;
    403/*) echo "hub_gated: the hub does not let this account have $3: it answered 403";;
    404/*|410/*) echo "hub_missing: the hub has no $3: it answered $1";;
    451/*) echo "hub_missing: the hub may not give out $3: it answered 451";;
    *) echo "hub_unreachable: the hub answered $1 for $3";;
  esac
}
# waiting STATUS HEADERS TRY: seconds until the next try of a request that was put off
waiting() {
  after=$(header "$2" retry-after)
  case $after in ''|*[!0-9]*) after=$(($3 * pause * 2));; esac
  [ "$after" -le 900 ] || after=900
  echo "$after"
}
in_words() {
  case $1 in
    5|6) echo "its name is not known here (curl: $1)";; 7) echo "nobody answers there (curl: 7)";; 28) echo "it did not answer in time (curl: 28)";;
    35|51|58|60|77) echo "no trusted connection came about (curl: $1)";; 18|52|55|56|92) echo "it hung up (curl: $1)";; *) echo "curl ended with $1";;
  esac
}
"""

_ASK = r"""
ask() {
  try=1
  while :; do
    rm -f "$2.head"
    status=$(with_token | curl -K - -sS -L -o "$2" -D "$2.head" -w '%{http_code}' --connect-timeout 20 -m 300 "$1" 2>"$2.said") && code=0 || code=$?
    if [ "$code" -ne 0 ]; then
      [ "$try" -lt 4 ] && [ "$code" -ne 60 ] && [ "$code" -ne 6 ] || fail hub_unreachable "$endpoint: $(in_words "$code")"
      after=$((try * pause))
    else
      case $status in
        200) return 0;;
        429) [ "$try" -lt 12 ] || fail hub_rate_limited "the hub answered 429 for the ${try}th time"
          after=$(waiting "$status" "$2.head" "$try"); say "the hub asks us to slow down: 429 Too Many Requests. Retry after $after seconds";;
        5??|408) [ "$try" -lt 6 ] || fail hub_unreachable "the hub answered $status, $try times"
          after=$((try * pause)); say "the hub answered $status; trying again in $after s";;
        *) why=$(refusal "$status" "$2.head" "$3"); fail "${why%%: *}" "${why#*: }";;
      esac
    fi
    sleep "$after"; try=$((try + 1))
  done
}
"""

_JSON = r"""
# Every value of a JSON text as `a.0.b<tab>value`; strings with control characters come with a \001 in front.
flat() {
  awk '
  function bad() { failed = 1; exit 3 }
  function skip() { while (i <= n && index(" \t\r\n", substr(s, i, 1))) i++ }
  function text(   c, made, odd) {
    made = ""; odd = ""; i++
    while (1) {
      if (i > n) bad()
      c = substr(s, i, 1); i++
      if (c == "\"") return odd made
      if (c == "\\") { c = substr(s, i, 1); i++; if (!index("\"\\/", c)) { odd = "\001"; if (c == "u") { c = substr(s, i, 4); i += 4 } } }
      else if (c < " ") odd = "\001"
      made = made c
    }
  }
  function value(at,   c, k, b) {
    skip(); c = substr(s, i, 1)
    if (c == "{" || c == "[") {
      i++; skip(); k = -1
      if (substr(s, i, 1) == (c == "{" ? "}" : "]")) { i++; return }
      while (1) {
        if (c == "{") { skip(); if (substr(s, i, 1) != "\"") bad(); k = text(); skip(); if (substr(s, i, 1) != ":") bad(); i++ } else k++
        value(at == "" ? k : at "." k)
        skip(); b = substr(s, i, 1); i++
        if (b == (c == "{" ? "}" : "]")) return
        if (b != ",") bad()
      }
    }
    if (c == "\"") { print at "\t" text(); return }
    b = i
    while (i <= n && index("+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", substr(s, i, 1))) i++
    if (b == i) bad()
    print at "\t" substr(s, b, i - b)
  }
  { s = s $0 "\n" }
  END { if (failed) exit 3; n = length(s); i = 1; value(""); skip(); if (i <= n) exit 3 }' "$1"
}
"""

_LIST = r"""
# The files of the flattened tree on standard input: ETAG SIZE KIND PATH. 4: a name that can not be.
files() {
  awk -F '\t' '
  { split($1, k, "."); number = k[1]; name = substr($1, length(number) + 2); v = substr($0, length($1) + 2)
    if (!(number in seen)) { seen[number] = 1; order[++count] = number }
    got[number, name] = v }
  END {
    for (at = 1; at <= count; at++) {
      n = order[at]
      if (got[n, "type"] != "file") continue
      path = got[n, "path"]; size = got[n, "size"]; kind = "git"; tag = got[n, "oid"]
      if ((n, "lfs.oid") in got) { kind = "lfs"; tag = got[n, "lfs.oid"]; sub(/^sha256:/, "", tag); if ((n, "lfs.size") in got) size = got[n, "lfs.size"] }
      if (path == "" || path ~ /[\001-\037\177\\]/ || path ~ /^\// || path ~ /(^|\/)\.\.?(\/|$)/ || path ~ /\/\// || path ~ /\/$/) { print "a file is called \"" path "\"" >"/dev/stderr"; exit 4 }
      if (size !~ /^[0-9]+$/ || length(size) > 16 || tag !~ /^[0-9a-f]+$/ || length(tag) != (kind == "lfs" ? 64 : 40)) { print path " has no size or hash" >"/dev/stderr"; exit 4 }
      print tag "\t" size "\t" kind "\t" path
    }
  }'
}
matches() {
  given=$2; IFS='
'; set -f
  for one in $given; do case $1 in $one) unset IFS; set +f; return 0;; esac; done
  unset IFS; set +f; return 1
}
wanted() {
  [ -z "$include" ] || matches "$1" "$include" || return 1
  [ -z "$exclude" ] || ! matches "$1" "$exclude"
}
choose() {
  while IFS="$tab" read -r tag size kind path; do
    if wanted "$path"; then printf '%s\t%s\t%s\t%s\n' "$tag" "$size" "$kind" "$path"; fi
  done
}
# PATH<tab>SIZE<tab>SHA of what a manifest says
of_manifest() {
  [ -f "$1" ] || return 0
  flat "$1" | awk -F '\t' '
    $1 ~ /^files\.[0-9]+\.(path|size|sha256)$/ { split($1, k, "."); got[k[2], k[3]] = substr($0, length($1) + 2); if (k[2] + 0 >= most) most = k[2] + 1 }
    END { for (n = 0; n < most; n++) print got[n, "path"] "\t" got[n, "size"] "\t" got[n, "sha256"] }'
}
# TOTAL HERE COUNT of the list: what is there by size, whole or partial
standing() {
  { find "$home/blobs" "$work/hf" -type f -exec ls -ln {} + 2>/dev/null || :; } | awk -v list="$work/list" -v part=".incomplete" '
    { name = $NF; sub(/.*\//, "", name); whole = name !~ /\.incomplete$/; tag = name; sub(/\..*/, "", tag)
      if ($5 + 0 > here[tag]) here[tag] = $5 + 0 }
    END {
      while ((getline line < list) > 0) {
        split(line, f, "\t")
        if (f[1] in once) continue
        once[f[1]] = 1; total += f[2]; got = here[f[1]] + 0; if (got > f[2]) got = 0; sum += got; count++
      }
      printf "%.0f %.0f %d\n", total, sum, count
    }'
}
room() {
  set -- $(standing); missing=$(($1 - $2))
  available=$(free_bytes "$home"); [ -n "$available" ] || return 0
  [ "$((missing + keep_free))" -le "$available" ] || [ "$missing" -eq 0 ] || fail disk_full "$(human "$missing") are missing and $(human "$keep_free") are to stay free, but $home has only $(human "$available") left. Nothing was fetched"
}
"""

_RESOLVE = r"""
check_token
command -v curl >/dev/null 2>&1 || fail program_missing "curl is not installed here, and the hub is asked with it"
mkdir -p "$home/sparkweb" "$home/blobs" 2>/dev/null || fail permission_denied "$home can't be written"
asked=$(mktemp -d "$home/sparkweb/.asked.XXXXXX") || fail permission_denied "$home/sparkweb can't be written"
trap 'rm -rf "$asked"' EXIT
trap 'exit 143' TERM INT HUP
ask "$endpoint/api/models/$repo/revision/$revision_quoted" "$asked/revision" "revision $revision of $repo"
flat "$asked/revision" >"$asked/flat" 2>/dev/null || fail bad_answer "what $endpoint says of the revision is no JSON"
SPARKWEB_COMMIT=$(awk -F '\t' '$1 == "sha" { print $2; exit }' "$asked/flat")
places
say "$repo at $revision is commit $commit"
: >"$asked/all"
next="$endpoint/api/models/$repo/tree/$commit?recursive=true&expand=false"
pages=0
while [ -n "$next" ]; do
  ask "$next" "$asked/tree" "list of files of $repo"
  flat "$asked/tree" >"$asked/flat" 2>/dev/null || fail bad_answer "the list of files is no JSON"
  files <"$asked/flat" >>"$asked/all" 2>"$asked/odd" || fail bad_answer "the list of files is not usable: $(head -c 300 "$asked/odd")"
  link=$(sed -n 's/\r$//; s/^[Ll][Ii][Nn][Kk]:.*<\([^>]*\)>; *rel="next".*/\1/p' "$asked/tree.head" | tail -n 1)
  case $link in '') next=;; "$endpoint"/*) next=$link;; http*://*/*) rest=${link#*://}; next=$endpoint/${rest#*/};; /*) next=$endpoint$link;; *) next=;; esac
  pages=$((pages + 1)); [ "$pages" -lt 1000 ] || fail bad_answer "the list of files has no end"
done
choose <"$asked/all" | sort -t "$tab" -k2,2nr -k4,4 >"$asked/list"
[ -s "$asked/list" ] || fail hub_missing "no file of this revision is wanted: $(wc -l <"$asked/all" | tr -d ' ') files, none of which the patterns leave"
mkdir -p "$work"; mv -f "$asked/list" "$work/list"
of_manifest "$manifest" >"$asked/known" 2>/dev/null || : >"$asked/known"
set -- $(standing)
say "$(wc -l <"$work/list" | tr -d ' ') files, $(human "$1"); $(human "$2") of it are here already"
room
printf 'sparkweb-value: %s\n' "$commit"
"""

_DOWNLOAD = r"""
hash_of() {
  case $3 in
    lfs) sha256sum <"$1" | cut -d ' ' -f 1;;
    *) { printf 'blob %s\0' "$2"; cat "$1"; } | sha1sum | cut -d ' ' -f 1;;
  esac
}
# right FILE TAG SIZE KIND: whether the bytes are those that the tag names; then it is written down
right() {
  [ "$(size_of "$1")" = "$3" ] || return 1
  [ "$(hash_of "$1" "$3" "$4")" = "$2" ] || return 1
  sum=$2; [ "$4" = lfs ] || sum=$(sha256sum <"$1" | cut -d ' ' -f 1)
  printf '%s\t%s\n' "$2" "$sum" >>"$work/verified"
}
verified() { [ -f "$work/verified" ] && grep -q "^$1$tab" "$work/verified"; }
give_up() { ( set -C; printf '%s\n' "$1" >"$work/failed" ) 2>/dev/null || :; exit 1; }
url_of() {
  printf '%s' "$1" | awk '
    BEGIN { for (c = 1; c < 256; c++) code[sprintf("%c", c)] = sprintf("%%%02X", c) }
    { for (i = 1; i <= length($0); i++) { c = substr($0, i, 1); printf "%s", c ~ /[A-Za-z0-9._~\/-]/ ? c : code[c] } }'
}
# one TAG SIZE KIND PATH: the blob, whole and right
one() {
  blob=$home/blobs/$1; part=$blob.incomplete
  if command -v flock >/dev/null 2>&1; then
    exec 8>"$hub/.locks/$name/$1.lock"
    flock -n 8 || { say "another program fetches $4; waiting for it"; flock 8; }
  fi
  if [ -f "$blob" ]; then
    verified "$1" && [ "$(size_of "$blob")" = "$2" ] && return 0
    if right "$blob" "$1" "$2" "$3"; then return 0; fi
    say "$4 was here but is damaged; it is fetched again"; rm -f "$blob"
  fi
  try=0; damaged=0
  while :; do
    [ ! -e "$work/failed" ] || exit 1
    have=$(size_of "$part")
    if [ "$have" -gt "$2" ]; then rm -f "$part"; have=0; fi
    if [ "$have" -eq "$2" ]; then
      [ -e "$part" ] || : >"$part"
      if right "$part" "$1" "$2" "$3"; then mv -f "$part" "$blob"; say "have $4, $(human "$2")"; return 0; fi
      rm -f "$part"; damaged=$((damaged + 1))
      [ "$damaged" -lt 2 ] || give_up "manifest_mismatch: $4 came with another hash than the hub names, twice"
      say "$4 came with another hash than the hub names; it is fetched once more"; have=0
    fi
    rm -f "$mine.head"
    with_token | curl -K - -sS -f -L -C "$have" -o "$part" -D "$mine.head" -w '%{http_code}' --connect-timeout 20 --speed-limit 1000 --speed-time 60 "$endpoint/$resolve$commit/$(url_of "$4")" >"$mine.status" 2>"$mine.said" &
    curl=$!
    code=0; wait "$curl" || code=$?
    curl=
    status=$(cat "$mine.status" 2>/dev/null || echo 000)
    now=$(size_of "$part")
    if [ "$now" -gt "$have" ]; then try=0; fi
    [ "$code" -ne 0 ] || [ "$now" -ne "$2" ] || continue
    try=$((try + 1)); after=$((try * pause)); [ "$after" -le 60 ] || after=60
    case $code/$status in
      0/*) [ "$now" -le "$2" ] || give_up "manifest_mismatch: $4 is larger than the hub says"; [ "$try" -lt 6 ] || give_up "hub_unreachable: $4 ends early";;
      33/*|*/416) say "the hub does not go on with $4 in its middle; it is fetched from its beginning"; rm -f "$part"; [ "$try" -lt 6 ] || give_up "hub_unreachable: $4 can't be fetched from its middle";;
      23/*) give_up "disk_full: $4 can't be written: $(tail -n 1 "$mine.said")";;
      22/429) [ "$try" -lt 12 ] || give_up "hub_rate_limited: the hub answered 429 for $4, $try times"
        after=$(waiting 429 "$mine.head" "$try"); say "the hub asks us to slow down: 429 Too Many Requests. Retry after $after seconds";;
      22/5??|22/408) [ "$try" -lt 8 ] || give_up "hub_unreachable: the hub answered $status for $4, $try times"; say "the hub answered $status for $4; trying again in $after s";;
      22/403) case $(header "$mine.head" x-error-code) in '') [ "$try" -ge 3 ] && give_up "$(refusal 403 "$mine.head" "$4")" || say "the hub answered 403 for $4; asking for a new address of it";; *) give_up "$(refusal 403 "$mine.head" "$4")";; esac;;
      22/*) give_up "$(refusal "$status" "$mine.head" "$4")";;
      60/*) give_up "hub_unreachable: $endpoint: $(in_words 60)";;
      *) [ "$try" -lt 8 ] || give_up "hub_unreachable: $endpoint: $(in_words "$code")"
        say "$4 was cut off after $(human "$now") of $(human "$2"): $(in_words "$code"); going on from there";;
    esac
    waited=0
    while [ "$waited" -lt "$after" ] && [ ! -e "$work/failed" ]; do sleep 1; waited=$((waited + 1)); done
  done
}
worker() {
  mine=$work/worker.$1; curl=; trap '[ -z "$curl" ] || kill "$curl" 2>/dev/null; exit 143' TERM INT HUP
  while IFS="$tab" read -r tag size kind path; do
    [ ! -e "$work/failed" ] || exit 1
    mkdir "$work/claims/$tag" 2>/dev/null || continue
    one "$tag" "$size" "$kind" "$path" || exit 1
  done <"$work/list"
}
# A line for those who wait: @fetch DONE TOTAL FILES OF RATE, then for each file in work | DONE SIZE PATH
progress() {
  now=$(date +%s)
  { find "$home/blobs" "$work/hf" -type f -exec ls -ln {} + 2>/dev/null || :; } | awk -v list="$work/list" -v before="${was:-}" -v then="${at:-}" -v rate="${rate:-0}" -v now="$now" '
    { name = $NF; sub(/.*\//, "", name); tag = name; sub(/\..*/, "", tag)
      if (name !~ /\./) whole[tag] = $5 + 0; else if ($5 + 0 > here[tag]) here[tag] = $5 + 0 }
    END {
      while ((getline line < list) > 0) {
        split(line, f, "\t")
        if (f[1] in once) continue
        once[f[1]] = 1; total += f[2]; count++
        if (f[1] in whole) { sum += f[2]; ready++ }
        else if (f[1] in here) { got = here[f[1]]; if (got > f[2]) got = f[2]; sum += got; if (shown < 8) { shown++; parts = parts sprintf(" | %.0f %.0f %s", got, f[2], f[4]) } }
      }
      if (before != "" && now > then) { fresh = (sum - before) / (now - then); if (fresh < 0) fresh = 0; rate = rate > 0 ? rate * 0.7 + fresh * 0.3 : fresh }
      printf "%.0f %.0f %d %d %.0f%s\n", sum, total, ready, count, rate, parts
    }' >"$work/progress"
  read -r was total ready count rate parts <"$work/progress"
  at=$now
  printf '@fetch %s %s %s %s %s %s\r' "$was" "$total" "$ready" "$count" "$rate" "$parts"
}
stop_workers() { for one in $workers; do kill "$one" 2>/dev/null || :; done; for one in $workers; do wait "$one" 2>/dev/null || :; done; workers=; }
left_off() {
  trap '' TERM INT HUP; stop_workers; progress; printf '\n'
  say "stopped; $(human "${was:-0}") of $(human "${total:-0}") are kept in $home/blobs, and a new fetch goes on from there"
  unlock; exit 143
}
"""

_TOOLS = r"""
# The hub's own program, where there is one: its words to fetch files of one commit into a cache of our own
find_tool() {
  [ "$tool" != curl ] || return 1
  for one in hf "$HOME/.local/bin/hf"; do command -v "$one" >/dev/null 2>&1 && { program=$one; form=cli; return 0; }; done
  for one in huggingface-cli "$HOME/.local/bin/huggingface-cli"; do command -v "$one" >/dev/null 2>&1 && { program=$one; form=cli; return 0; }; done
  for one in python3 "$HOME"/venv/bin/python "$HOME"/.venv/bin/python "$HOME"/*/.venv/bin/python "$HOME"/*/venv/bin/python; do
    command -v "$one" >/dev/null 2>&1 && "$one" -c 'import huggingface_hub' >/dev/null 2>&1 && { program=$one; form=python; return 0; }
  done
  return 1
}
by_tool() {
  if ! find_tool; then [ "$tool" != hf ] || fail program_missing "neither hf nor python's huggingface_hub is here"; return 0; fi
  while IFS="$tab" read -r tag size kind path; do
    [ -f "$home/blobs/$tag" ] || [ -f "$home/blobs/$tag.incomplete" ] || printf '%s\0' "$path"
  done <"$work/list" >"$work/missing"
  [ -s "$work/missing" ] || return 0
  say "with $program"
  mkdir -p "$work/hf"
  (
    HF_ENDPOINT=$endpoint HF_HUB_DISABLE_PROGRESS_BARS=1 HF_HUB_DISABLE_TELEMETRY=1 HF_HUB_OFFLINE=0 HF_HUB_DISABLE_UPDATE_CHECK=1 NO_COLOR=1
    export HF_ENDPOINT HF_HUB_DISABLE_PROGRESS_BARS HF_HUB_DISABLE_TELEMETRY HF_HUB_OFFLINE HF_HUB_DISABLE_UPDATE_CHECK NO_COLOR
    if [ "$form" = cli ]; then exec xargs -0 -n 500 "$program" download "$repo" --revision "$commit" --cache-dir "$work/hf" <"$work/missing"; fi
    exec xargs -0 -n 500 "$program" -c 'import sys; from huggingface_hub import snapshot_download as s; s(sys.argv[1], revision=sys.argv[2], cache_dir=sys.argv[3], max_workers=int(sys.argv[4]), allow_patterns=[p.replace("[", "[[]") for p in sys.argv[5:]])' "$repo" "$commit" "$work/hf" "$streams" <"$work/missing"
  ) >"$work/hf.said" 2>&1 &
  workers=$!
  watch_workers hf
  ended=0; wait "$workers" || ended=$?
  workers=
  # What is whole goes where it belongs; each is verified like any other. What it left half goes on by curl.
  for file in "$work"/hf/*/blobs/*; do
    [ -f "$file" ] || continue
    tag=${file##*/}; tag=${tag%%.*}
    case $file in *.incomplete) [ -e "$home/blobs/$tag.incomplete" ] || mv -f "$file" "$home/blobs/$tag.incomplete";; *) [ -e "$home/blobs/$tag" ] || mv -f "$file" "$home/blobs/$tag";; esac
  done
  [ "$ended" -eq 0 ] || { say "$program ended with $ended: $(grep -v -e "Hint" -e "^ *$" "$work/hf.said" | tail -n 1 | tr -c '[:print:]\n' ' ' | cut -c 1-300)"; say "going on with curl for what is missing"; }
}
"""

_FETCH = r"""
check_token
places
alone
trap unlock EXIT
[ -f "$work/list" ] || { [ -f "$manifest" ] && { say "complete already"; exit 0; }; fail internal "the list of files is gone"; }
workers=; was=; at=; rate=0; stopping=
trap left_off TERM INT HUP
rm -rf "$work/claims" "$work/failed"; mkdir -p "$work/claims" "$home/blobs" || fail permission_denied "$home can't be written"
rm -f "$work"/worker.*
# What an earlier manifest names is verified already
of_manifest "$manifest" 2>/dev/null | while IFS="$tab" read -r path size sum; do
  link=$home/snapshots/$commit/$path; [ -h "$link" ] || continue
  tag=$(readlink "$link"); tag=${tag##*/}
  [ "$(size_of "$home/blobs/$tag")" = "$size" ] && printf '%s\t%s\n' "$tag" "$sum"
done >>"$work/verified" || :
watch_workers() {
  while :; do
    alive=
    for one in $workers; do kill -0 "$one" 2>/dev/null && alive=1; done
    [ -n "$alive" ] || break
    available=$(free_bytes "$home")
    if [ -n "$available" ] && [ "$available" -lt "$((keep_free / 2))" ]; then
      ( set -C; printf 'disk_full: only %s are left on the disk of %s; stopped before it is full. What was fetched is kept\n' "$(human "$available")" "$home" >"$work/failed" ) 2>/dev/null || :
      for one in $workers; do kill "$one" 2>/dev/null || :; done
    fi
    progress
    sleep "${SPARKWEB_LOOK_S:-2}"
  done
}
room
by_tool
[ ! -e "$work/failed" ] || fail "$(cut -d : -f 1 "$work/failed" | head -n 1)" "$(head -n 1 "$work/failed" | sed 's/^[^:]*: //')"
number=0
while [ "$number" -lt "$streams" ]; do worker "$number" & workers="$workers $!"; number=$((number + 1)); done
watch_workers
bad=0; for one in $workers; do wait "$one" || bad=$?; done
workers=
progress; printf '\n'
if [ -e "$work/failed" ]; then fail "$(cut -d : -f 1 "$work/failed" | head -n 1)" "$(head -n 1 "$work/failed" | sed 's/^[^:]*: //')"; fi
[ "$bad" -eq 0 ] || fail internal "a stream ended with $bad"
say "all $count files are here, $(human "$total"), and have the right hash"
"""

_ADOPT = r"""
# The files of a folder of this node, linked or copied into the cache; links are followed
[ -d "$folder" ] || fail model_path_missing "there is no folder $folder"
mkdir -p "$home/sparkweb" "$home/blobs" 2>/dev/null || fail permission_denied "$home can't be written"
SPARKWEB_COMMIT=$revision; places; alone
trap unlock EXIT; trap 'exit 143' TERM INT HUP
mkdir -p "$work"; : >"$work/verified"; : >"$work/list.new"
( cd "$folder" && find -L . -type f ! -path './.cache/*' ! -path './.git/*' ! -path './.huggingface/*' ! -name '*.incomplete' ! -name '*.lock' ) | sed 's|^\./||' | sort >"$work/found"
while IFS= read -r path; do
  case $path in *[!\ -~]*|*\\*|*\"*) fail bad_answer "a file of the folder is called $path";; esac
  wanted "$path" || continue
  file=$folder/$path; size=$(size_of "$file")
  sum=$(sha256sum <"$file" | cut -d ' ' -f 1) || fail permission_denied "$file can't be read"
  if [ ! -f "$home/blobs/$sum" ]; then
    rm -f "$home/blobs/$sum.incomplete"
    real=$(readlink -f "$file")
    ln "$real" "$home/blobs/$sum.incomplete" 2>/dev/null || cp "$real" "$home/blobs/$sum.incomplete" 2>/dev/null || { rm -f "$home/blobs/$sum.incomplete"; fail disk_full "$path can't be put into $home/blobs"; }
    mv -f "$home/blobs/$sum.incomplete" "$home/blobs/$sum"
  fi
  printf '%s\t%s\tlfs\t%s\n' "$sum" "$size" "$path" >>"$work/list.new"
  printf '%s\t%s\n' "$sum" "$sum" >>"$work/verified"
done <"$work/found"
[ -s "$work/list.new" ] || fail model_path_missing "$folder holds no file that is wanted"
mv -f "$work/list.new" "$work/list"
say "$(wc -l <"$work/list" | tr -d ' ') files of $folder are in the cache"
printf 'sparkweb-value: %s\n' "$commit"
"""

_PUBLISH = r"""
places
alone
trap unlock EXIT; trap 'exit 143' TERM INT HUP
[ -f "$work/list" ] || { [ -f "$manifest" ] && { say "complete already"; exit 0; }; fail internal "the list of files is gone"; }
of_manifest "$manifest" >"$work/before" 2>/dev/null || : >"$work/before"
rm -rf "$work/snapshot"; mkdir -p "$work/snapshot" "$home/snapshots" || fail permission_denied "$home can't be written"
# Every file of the list is verified, or nothing is shown
awk -F '\t' -v verified="$work/verified" -v before="$work/before" '
  BEGIN { while ((getline line < verified) > 0) { split(line, f, "\t"); sum[f[1]] = f[2] } }
  { if (!($1 in sum)) { print $4 >"/dev/stderr"; exit 5 } print $4 "\t" $2 "\t" sum[$1]; mine[$4] = 1 }
  END { while ((getline line < before) > 0) { split(line, f, "\t"); if (!(f[1] in mine) && f[1] != "") print line } }
' "$work/list" >"$work/files" 2>"$work/odd" || fail manifest_mismatch "$(head -n 1 "$work/odd") was not verified"
while IFS="$tab" read -r tag size kind path; do
  [ "$(size_of "$home/blobs/$tag")" = "$size" ] || fail manifest_mismatch "$path is not as large as it should be"
  up=../../; rest=$path
  while [ "${rest#*/}" != "$rest" ]; do up=../$up; rest=${rest#*/}; done
  case $path in */*) mkdir -p "$work/snapshot/${path%/*}";; esac
  ln -s "${up}blobs/$tag" "$work/snapshot/$path"
done <"$work/list"
[ -z "$durable" ] || sync
if [ -d "$home/snapshots/$commit" ]; then
  while IFS="$tab" read -r tag size kind path; do
    case $path in */*) mkdir -p "$home/snapshots/$commit/${path%/*}";; esac
    [ "$(readlink "$home/snapshots/$commit/$path" 2>/dev/null)" = "$(readlink "$work/snapshot/$path")" ] || mv -f "$work/snapshot/$path" "$home/snapshots/$commit/$path"
  done <"$work/list"
else
  mv "$work/snapshot" "$home/snapshots/$commit" || fail permission_denied "$home/snapshots can't be written"
fi
if [ "$revision" != "$commit" ]; then
  case $revision in */*) mkdir -p "$home/refs/${revision%/*}";; *) mkdir -p "$home/refs";; esac
  printf '%s' "$commit" >"$home/refs/$revision.new" && mv -f "$home/refs/$revision.new" "$home/refs/$revision"
fi
sort "$work/files" | awk -F '\t' -v repo="$repo" -v commit="$commit" -v made="$(date -u +%Y-%m-%dT%H:%M:%SZ)" '
  BEGIN { printf "{\"format\": \"sparkweb-manifest\", \"version\": 1, \"repo\": \"%s\", \"commit\": \"%s\", \"files\": [", repo, commit }
  { gsub(/"/, "\\\"", $1); printf "%s\n{\"path\": \"%s\", \"size\": %s, \"sha256\": \"%s\"}", (NR > 1 ? "," : ""), $1, $2, $3 }
  END { printf "\n], \"complete\": true, \"made\": \"%s\"}\n", made }' >"$work/manifest"
[ -z "$durable" ] || sync
mv -f "$work/manifest" "$manifest" || fail permission_denied "$manifest can't be written"
total=$(awk -F '\t' '{ sum += $2 } END { printf "%.0f", sum }' "$work/list")
count=$(wc -l <"$work/list" | tr -d ' ')
rm -rf "$work"
say "$home/snapshots/$commit: complete, $count files, $(human "$total")"
"""


def resolve(wish: Wish) -> Shell:
    """Ask the hub which commit it is and which files it has; see that there is room. Says the commit for the next steps."""
    return _made(wish, _ASK, _JSON, _LIST, _RESOLVE)


def adopt(wish: Wish) -> Shell:
    """Instead of `resolve` and `fetch`: take the files from a folder of the node."""
    return _made(wish, _LIST, _ADOPT)


def fetch(wish: Wish) -> Shell:
    return _made(wish, _JSON, _LIST, _DOWNLOAD, _TOOLS, _FETCH)


def publish(wish: Wish) -> Shell:
    return _made(wish, _JSON, _LIST, _PUBLISH)


def _made(wish: Wish, *parts: str) -> Shell:
    values = {
        "repo": wish.repo,
        "name": wish.folder_name,
        "revision": wish.revision,
        "revision_quoted": quote(wish.revision, safe=""),
        "resolve": f"{wish.repo}/resolve/",
        "include": "\n".join(wish.include),
        "exclude": "\n".join(wish.exclude),
        "hub": wish.cache,
        "endpoint": wish.endpoint,
        "tool": wish.tool,
        "folder": wish.folder,
        "streams": str(wish.streams),
        "keep_free": str(wish.keep_free_gib * GIB),
        "durable": "1",
    }
    top = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    return Shell("set -u\n" + top + _COMMON + "".join(parts))


def elsewhere(wish: Wish) -> bool:
    """Whether a mirror is asked instead of the hub itself."""
    return wish.endpoint != HUB
