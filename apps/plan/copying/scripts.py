# ruff: noqa: E501 (shell text stays on one line)
r"""The scripts of a copy, in POSIX sh with GNU find, stat and coreutils.

Beside a model folder DIR lies a book: `models--x--y/sparkweb` for a snapshot of a hub's cache, else `PARENT/.sparkweb`. In it, by the
folder's own name NAME:

- `NAME.json`: the manifest that says complete: {"format": "sparkweb-manifest", "version": 1, "repo", "commit", "files": [{"path",
  "size" (bytes), "sha256"}], "complete": true, "made"}, one file a line. It goes before anything is changed, and comes last;
- `NAME.list`: the same of a copy that is on its way, `SHA256 SIZE PATH` by tabs;
- `NAME.copy/`: the copy that nobody takes for the model yet; its unfinished files in `.rsync-partial`;
- `NAME.verified`: `SHA256 SIZE MTIME PATH` of what was read and found right, so that it is not read again.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from apps.plan.copying.wish import Place, Wish, revision_of
from apps.shell import Shell

MARK = "sparkweb-copy"
CIPHERS = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr"
KEY_HOURS = 24  # after which the target's own sshd refuses a key that nobody removed
IDLE_S = 300  # that a node waits for the next file of the one before it

_COMMON = r"""
set -u
LC_ALL=C; export LC_ALL
umask 022
tab=$(printf '\t')
fail() { printf 'sparkweb: %s: %s\n' "$1" "$2"; exit 1; }
leaf=${path##*/}
case $path in */snapshots/*) book=${path%/snapshots/*}/sparkweb;; *) book=${path%/*}/.sparkweb;; esac
manifest=$book/$leaf.json; list=$book/$leaf.list; stage=$book/$leaf.copy; verified=$book/$leaf.verified
flat() { sed -n "s/^{\"path\": \"\\(.*\\)\", \"size\": \\([0-9]*\\), \"sha256\": \"\\([0-9a-f]*\\)\"}.*/\\3$tab\\2$tab\\1/p" "$1"; }
bytes_of() { awk -F '\t' '{ n += $2 } END { printf "%.0f", n }' "$1"; }
files_in() { ( cd "$1" && find -L . -type f ! -path './.cache/*' ! -path './.git/*' ! -path '*/.rsync-partial/*' ! -name '*.incomplete' ! -name '*.lock' -printf '%s\t%P\n' ) | sort; }
# Whether the folder has what its manifest says, by size
complete() {
  [ -f "$manifest" ] && grep -q '"complete": true' "$manifest" && [ -d "$path" ] || return 1
  flat "$manifest" | cut -f 2,3 | sort >"$book/$leaf.want" && files_in "$path" | sort | comm -23 "$book/$leaf.want" - | grep -q . && return 1
  [ -s "$book/$leaf.want" ]
}
digest() { sort "$1" | sha256sum | cut -d ' ' -f 1; }
publish_manifest() {
  sort -t "$tab" -k 3 "$list" | awk -F '\t' -v commit="$commit" -v repo="$repo" -v made="$(date -u +%Y-%m-%dT%H:%M:%SZ)" '
    BEGIN { printf "{\"format\": \"sparkweb-manifest\", \"version\": 1, \"repo\": \"%s\", \"commit\": \"%s\", \"files\": [", repo, commit }
    { printf "%s\n{\"path\": \"%s\", \"size\": %s, \"sha256\": \"%s\"}", (NR > 1 ? "," : ""), $3, $2, $1 }
    END { printf "\n], \"complete\": true, \"made\": \"%s\"}\n", made }' >"$manifest.new" && mv -f "$manifest.new" "$manifest"
}
"""

# check FOLDER: reads what was not read before; names of wrong and missing files go to $list.bad
_CHECK = r"""
check() {
  touch "$verified"
  ( cd "$1" && find -L . -type f -printf '%s\t%T@\t%P\n' ) | awk -F '\t' -v list="$list" -v verified="$verified" '
    BEGIN { while ((getline line < verified) > 0) { split(line, f, "\t"); known[f[1] "\t" f[2] "\t" f[3] "\t" f[4]] = 1 }
      while ((getline line < list) > 0) { split(line, f, "\t"); sum[f[3]] = f[1]; size[f[3]] = f[2] } }
    ($3 in sum) { seen[$3] = 1; if ($1 != size[$3]) print "bad\t" $3; else if (!((sum[$3] "\t" $1 "\t" $2 "\t" $3) in known)) print "read\t" sum[$3] "\t" $1 "\t" $2 "\t" $3 }
    END { for (name in sum) if (!(name in seen)) print "bad\t" name }' >"$list.state"
  sed -n "s/^bad$tab//p" "$list.state" >"$list.bad"
  sed -n "s/^read$tab//p" "$list.state" >"$list.read"
  if [ -s "$list.read" ]; then
    cut -f 4 "$list.read" | tr '\n' '\000' | ( cd "$1" && xargs -0 -n 1 -P 4 sha256sum -- ) >"$list.sums" 2>/dev/null
    awk -F '\t' -v sums="$list.sums" -v bad="$list.bad" '
      BEGIN { while ((getline line < sums) > 0) got[substr(line, 67)] = substr(line, 1, 64) }
      { if (got[$4] == $1) print; else print $4 >>bad }' "$list.read" >>"$verified"
  fi
  rm -f "$list.state" "$list.read" "$list.sums"
}
"""

_MANIFEST = r"""
[ -d "$path" ] || fail model_path_missing "$path is not there"
mkdir -p "$book" 2>/dev/null || fail permission_denied "$book can't be written"
if complete; then
  flat "$manifest" >"$list.new"; echo "the manifest of $path is there; sizes agree"
else
  broken=$(find -L "$path" -type l | head -n 1)
  [ -z "$broken" ] || fail model_incomplete "$broken leads nowhere"
  files_in "$path" >"$list.found"
  [ -s "$list.found" ] || fail model_incomplete "$path holds no files"
  : >"$list.new"; : >"$list.read"
  while IFS="$tab" read -r size file; do
    case $file in *'"'*|*\\*) fail bad_input "a file's name holds a quote: $file";; esac
    real=$(readlink -f "$path/$file"); name=${real##*/}
    case $real in
      */blobs/*) if [ "${#name}" -eq 64 ] && [ -z "$(printf %s "$name" | tr -d 0-9a-f)" ]; then printf '%s\t%s\t%s\n' "$name" "$size" "$file" >>"$list.new"; continue; fi;;
    esac
    printf '%s\n' "$file" >>"$list.read"
  done <"$list.found"
  echo "$(wc -l <"$list.new") hashes are known by the hub's names, $(wc -l <"$list.read") files are read"
  tr '\n' '\000' <"$list.read" | ( cd "$path" && xargs -0 -r -n 1 -P 4 sha256sum -- ) >"$list.sums" || fail unreadable "a file of $path can't be read"
  awk -v found="$list.found" 'BEGIN { while ((getline line < found) > 0) { at = index(line, "\t"); size[substr(line, at + 1)] = substr(line, 1, at - 1) } }
    { name = substr($0, 67); print substr($0, 1, 64) "\t" size[name] "\t" name }' "$list.sums" >>"$list.new"
  rm -f "$list.found" "$list.read" "$list.sums"
fi
mv -f "$list.new" "$list"; complete || publish_manifest
printf '%s files, %s bytes\n' "$(wc -l <"$list")" "$(bytes_of "$list")"
printf 'sparkweb-value: %s %s\n' "$(bytes_of "$list")" "$(digest "$list")"
"""

_KEY = r"""
set -u
umask 077
keys=$HOME/.local/state/sparkweb/copy
rm -rf "$keys"; mkdir -p "$keys" || { echo "sparkweb: permission_denied: $keys can't be made"; exit 1; }
command -v ssh >/dev/null && command -v ssh-keygen >/dev/null || { echo "sparkweb: program_missing: ssh and ssh-keygen are needed"; exit 1; }
ssh-keygen -q -t ed25519 -N '' -C "$mark-$SPARKWEB_CODE" -f "$keys/key" || exit 1
printf 'sparkweb-value: %s\n' "$(cut -d ' ' -f 2 "$keys/key.pub")"
"""

_LET_IN = r"""
set -- ${SPARKWEB_MANIFEST:-}
total=${1:-0}; wanted=${2:-}
mkdir -p "$book" 2>/dev/null || fail permission_denied "$book can't be written"
rm -f "$book/$leaf.broken"
if complete && flat "$manifest" >"$list" && [ "$(digest "$list")" = "$wanted" ]; then
  rm -rf "$stage"; echo "complete already: $path"
else
  rm -f "$list"
  if [ ! -d "$stage" ]; then
    if [ -d "$path" ]; then cp -rlL "$path" "$stage" 2>/dev/null || { rm -rf "$stage"; mkdir "$stage"; }; else mkdir "$stage"; fi
  fi
  # What a receiver that was killed had of a file becomes a partial file again
  find "$stage" -type f -name '.*.??????' ! -path '*/.rsync-partial/*' | while IFS= read -r left; do
    name=${left##*/}; name=${name#.}; mkdir -p "${left%/*}/.rsync-partial" && mv -f "$left" "${left%/*}/.rsync-partial/${name%.*}"
  done
  here=$(find "$stage" -type f -printf '%s\n' | awk '{ n += $1 } END { printf "%.0f", n }')
  free=$(df -Pk "$book" | awk 'NR > 1 { printf "%.0f", $(NF - 2) * 1024; exit }')
  need=$(awk -v t="$total" -v h="$here" 'BEGIN { n = t - h; printf "%.0f", (n > 0 ? n : 0) }')
  echo "$here bytes are here already, $need are missing, $free are free"
  awk -v n="$need" -v f="$free" -v k="$keep" 'BEGIN { exit !(n > 0 && f - n < k) }' && fail disk_full "$need bytes are missing under $book, $free are free, and $keep stay free"
fi
umask 077
mkdir -p "$HOME/.ssh"; file=$HOME/.ssh/authorized_keys; touch "$file"
case ${SPARKWEB_PEER:-} in ''|*[!A-Za-z0-9+/=]*) fail bad_answer "the key of the node before is no key";; esac
{ grep -v " $mark-[0-9a-z]*\$" "$file" || :; } >"$file.sparkweb-new"
[ ! -s "$file.sparkweb-new" ] || [ -z "$(tail -c 1 "$file.sparkweb-new")" ] || echo >>"$file.sparkweb-new"
printf 'from="%s",restrict,expiry-time="%s" ssh-ed25519 %s %s-%s\n' "$from" "$(date -d "+$hours hours" +%Y%m%d%H%M)" "$SPARKWEB_PEER" "$mark" "$SPARKWEB_CODE" >>"$file.sparkweb-new"
cat "$file.sparkweb-new" >"$file" && rm -f "$file.sparkweb-new"
"""

_COPY = r"""
keys=$HOME/.local/state/sparkweb/copy; work=$keys/to
( umask 077; rm -rf "$work"; mkdir -p "$work"; printf '%s\n' "$known" >"$work/known" )
cat >"$work/ssh" <<END
exec ssh -F /dev/null -o BatchMode=yes -o IdentitiesOnly=yes -i '$keys/key' -o UserKnownHostsFile='$work/known' -o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes -o Compression=no -o ServerAliveInterval=15 -o ServerAliveCountMax=8 -o ConnectTimeout=20 -c $ciphers -p $port "\$@"
END
far() { sh "$work/ssh" "$user@$address" "$@"; }
quoted() { printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }
ended() {
  code=$?
  trap - EXIT; trap '' TERM INT HUP
  [ -z "${telling:-}" ] || kill "$telling" 2>/dev/null
  say=:; [ "$code" -eq 0 ] || { say="touch $(quoted "$book/$leaf.broken")"; echo "what was copied so far stays in $stage on $node; a later copy goes on from there"; }
  timeout 20 sh "$work/ssh" "$user@$address" "$say; sed -i '/ $mark-$SPARKWEB_CODE\$/d' ~/.ssh/authorized_keys" </dev/null >/dev/null 2>&1 || echo "$node can't be told to forget the key; it ends by itself within $hours hours"
  rm -rf "$keys"
  exit "$code"
}
trap ended EXIT; trap 'exit 143' TERM INT HUP
waited=0
until [ -f "$list" ]; do
  [ ! -e "$book/$leaf.broken" ] || fail copy_interrupted "the node before this one did not get it"
  [ "$waited" -lt "$idle" ] || fail copy_interrupted "no list of files came within $idle s"
  sleep 1; waited=$((waited + 1))
done
far true </dev/null || fail connection_lost "$node does not let us in at $address"
if ! far "[ -d $(quoted "$stage") ]" </dev/null; then echo "$node has it already"; exit 0; fi
far "cat >$(quoted "$list.new") && mv -f $(quoted "$list.new") $(quoted "$list")" <"$list" || fail connection_lost "the list of files did not reach $node"
# Where a file can be read: in the copy that grows here, or in the folder itself
dir_now() { if [ -d "$stage" ]; then dir=$stage; else dir=$path; fi; }
how=tar
if command -v rsync >/dev/null && far 'command -v rsync' </dev/null >/dev/null; then how=rsync; fi
send() { # NAMES OUTPUT
  if [ "$how" = rsync ]; then
    rsync -rLt --files-from="$1" --partial-dir=.rsync-partial --timeout=600 --info=progress2,stats2 --no-inc-recursive -s -e "sh $work/ssh" "$dir/" "$user@$address:$stage/" >"$2" 2>&1
  else
    tar -C "$dir" -chf - -T "$1" 2>"$2" | far "tar -C $(quoted "$stage") -xf -" >>"$2" 2>&1
  fi
}
stream() { # LIST
  quiet=0; tries=0
  while [ -s "$1" ]; do
    dir_now; : >"$1.now"; : >"$1.later"
    while IFS="$tab" read -r sum size file; do
      if [ "$(stat -L -c %s "$dir/$file" 2>/dev/null)" = "$size" ]; then echo "$sum$tab$size$tab$file" >>"$1.now"; else echo "$sum$tab$size$tab$file" >>"$1.later"; fi
    done <"$1"
    if [ -s "$1.now" ]; then
      quiet=0; cut -f 3 "$1.now" >"$1.names"
      if send "$1.names" "$1.out"; then
        sed -n 's/^Literal data: \([0-9,]*\) bytes.*/\1/p' "$1.out" | tr -d , >>"$1.moved"
        bytes_of "$1.now" >>"$1.done"; echo >>"$1.done"; : >"$1.out"; mv -f "$1.later" "$1"; tries=0
      else
        code=$?; tries=$((tries + 1)); tail -n 3 "$1.out" | tr '\r' '\n' | tail -n 3
        case $code in 23|24) [ -d "$stage" ] || [ "$tries" -lt 2 ] || return "$code";; esac
        if grep -q 'No space left' "$1.out"; then return 11; fi
        [ "$tries" -lt 4 ] || return "$code"
        sleep "$tries"
      fi
    else
      [ ! -e "$book/$leaf.broken" ] || { echo "the node before this one did not get it"; return 1; }
      [ "$quiet" -lt "$((idle * 2))" ] || { echo "no further file came within $idle s"; return 1; }
      quiet=$((quiet + 1)); sleep 0.5
    fi
  done
}
tell() {
  last=0; was=0
  while :; do
    at=0
    for one in "$work"/part.?; do
      [ -f "$one" ] || continue
      now=$(tail -c 400 "$one.out" 2>/dev/null | tr '\r' '\n' | awk '$2 ~ /^[0-9]+%$/ { gsub(",", "", $1); n = $1 } END { printf "%.0f", n }')
      sum=$(cat "$one.done" 2>/dev/null | awk -v n="$now" '{ n += $1 } END { printf "%.0f", n }')
      at=$(awk -v a="$at" -v b="$sum" 'BEGIN { printf "%.0f", a + b }')
    done
    rate=$(awk -v a="$at" -v b="$last" -v s="$pace" 'BEGIN { printf "%.0f", (a > b ? (a - b) / s : 0) }')
    echo "@copy $at $total $rate"; last=$at; sleep "$pace"
  done
}
copy_all() { # LIST
  rm -f "$work"/part.*
  total=$(bytes_of "$1"); pace=2
  sort -t "$tab" -k 2,2nr "$1" | awk -F '\t' -v n="$streams" -v to="$work/part." '
    { best = 1; for (i = 2; i <= n; i++) if (load[i] + 0 < load[best] + 0) best = i; load[best] += $2 + 65536; print >(to best) }'
  tell & telling=$!
  pids=
  for one in "$work"/part.?; do stream "$one" & pids="$pids $!"; done
  worst=0
  for one in $pids; do wait "$one" || worst=$?; done
  kill "$telling" 2>/dev/null; wait "$telling" 2>/dev/null; telling=
  [ "$worst" -ne 11 ] || fail disk_full "the disk of $node is full"
  [ "$worst" -eq 0 ] || fail copy_interrupted "the copy to $node ended with $worst"
  echo "@copy $total $total 0"
  cat "$work"/part.*.moved 2>/dev/null | awk -v t="$total" -v how="$how" -v node="$node" '{ n += $1 } END { printf "%.0f of %.0f bytes went to %s by %s\n", n, t, node, how }'
}
if [ "$how" = tar ]; then
  echo "no rsync on both ends: tar over ssh, whole files"
  far "cd $(quoted "$stage") && find . -type f -printf '%s\t%P\n'" </dev/null >"$work/there"
  awk -F '\t' -v there="$work/there" 'BEGIN { while ((getline line < there) > 0) has[line] = 1 } !(($2 "\t" $3) in has)' "$list" >"$work/first"
else
  cp "$list" "$work/first"
fi
[ ! -s "$work/first" ] || copy_all "$work/first"
round=1
while :; do
  echo "reading what arrived on $node"
  printf '%s\n' "$checking" | far 'sh -s' >"$work/bad" || fail connection_lost "$node did not say whether its copy is right"
  [ -s "$work/bad" ] || break
  [ "$round" -lt 3 ] || fail manifest_mismatch "$(wc -l <"$work/bad") files differ after being copied again, e.g. $(head -n 1 "$work/bad"): the source itself may be damaged"
  echo "$(wc -l <"$work/bad") files differ and are copied again, e.g. $(head -n 1 "$work/bad")"
  awk -F '\t' -v bad="$work/bad" 'BEGIN { while ((getline line < bad) > 0) b[line] = 1 } ($3 in b)' "$list" >"$work/again"
  copy_all "$work/again"
  round=$((round + 1))
done
echo "all of it is right on $node"
"""

# On the target, over the copy's own connection: names of wrong files, which are taken away first
_FAR_CHECK = r"""
check "$stage"
while IFS= read -r file; do rm -f "$stage/$file"; printf '%s\n' "$file"; done <"$list.bad"
rm -f "$list.bad"
"""

_PUBLISH = r"""
if [ ! -d "$stage" ]; then complete || fail manifest_mismatch "$path is not complete"; echo "complete already: $path"; exit 0; fi
check "$stage"
[ ! -s "$list.bad" ] || fail manifest_mismatch "$(wc -l <"$list.bad") files are wrong or missing, e.g. $(head -n 1 "$list.bad")"
rm -f "$list.bad" "$manifest"
find "$stage" -type d -name .rsync-partial -exec rm -rf {} +
sync
mkdir -p "${path%/*}" && rm -rf "$book/$leaf.old"
[ ! -e "$path" ] || mv "$path" "$book/$leaf.old" || fail permission_denied "$path can't be replaced"
mv "$stage" "$path" || { [ ! -e "$book/$leaf.old" ] || mv "$book/$leaf.old" "$path"; fail permission_denied "$path can't be written"; }
publish_manifest || fail permission_denied "$manifest can't be written"
rm -rf "$book/$leaf.old"
case $path in */snapshots/*)
  refs=${path%/snapshots/*}/refs
  [ -e "$refs/main" ] || { mkdir -p "$refs" && printf %s "$leaf" >"$refs/main"; } ;;
esac
printf '%s: complete, %s files, %s bytes\n' "$path" "$(wc -l <"$list")" "$(bytes_of "$list")"
rm -f "$list"
"""

_VERIFY = r"""
[ -d "$path" ] || fail model_path_missing "$path is not there"
[ -f "$manifest" ] || fail manifest_mismatch "$path has no manifest to compare with; copy it from a node that has one, or make one there"
flat "$manifest" >"$list"
rm -f "$verified"
check "$path"
if [ -s "$list.bad" ]; then
  mv -f "$manifest" "$manifest.was"
  sed 's/^/differs or is missing: /' "$list.bad" | head -n 50
  fail manifest_mismatch "$(wc -l <"$list.bad") of $(wc -l <"$list") files differ, e.g. $(head -n 1 "$list.bad"); a copy from another node repairs only these"
fi
rm -f "$list.bad"
printf '%s: all %s files are as the manifest says\n' "$path" "$(wc -l <"$list")"
rm -f "$list"
"""

_REMOVE = r"""
[ -d "$path" ] || { echo "$path is not there"; exit 0; }
rm -f "$manifest"
case $path in */snapshots/*)
  home=${path%/snapshots/*}; hub=${home%/*}
  ( cd "$path" && find . -type l -exec readlink -f {} + ) | sort -u >"$book.mine" 2>/dev/null || : ;;
esac
rm -rf "$path" || fail permission_denied "$path can't be removed; files of containers may belong to root"
[ ! -e "$path" ] || fail permission_denied "$path is still there"
if [ -f "$book.mine" ]; then
  find "$hub"/models--*/snapshots -type l -exec readlink -f {} + 2>/dev/null | sort -u | comm -13 - "$book.mine" | while IFS= read -r blob; do
    case $blob in "$hub"/*/blobs/*|"$hub"/blobs/*) rm -f "$blob";; esac
  done
  rm -f "$book.mine"
  for ref in "$home"/refs/*; do [ ! -f "$ref" ] || [ "$(cat "$ref")" != "$leaf" ] || rm -f "$ref"; done
fi
rm -rf "$stage" "$list" "$verified" "$manifest.was" "$book/$leaf.want"
echo "removed: $path"
df -Ph "${path%/*}" | tail -n 1
"""


def _made(path: str, values: Mapping[str, str], *parts: str) -> str:
    named = {"path": path, "commit": revision_of(path), "repo": repo_of(path), "mark": MARK} | dict(values)
    top = "".join(f"{name}={shlex.quote(value)}\n" for name, value in named.items())
    return top + "".join(parts)


def repo_of(path: str) -> str:
    """owner/name, where the folder lies in a hub's cache."""
    for part in path.split("/"):
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/", 1)
    return ""


def manifest(wish: Wish) -> Shell:
    """Says `TOTAL DIGEST` for the steps that follow."""
    return Shell(_made(wish.path, {}, _COMMON, _MANIFEST))


def key() -> Shell:
    """A key for this copy alone; what an earlier one left is removed. Says its public half."""
    return Shell(f"mark={MARK}\n" + _KEY)


def let_in(wish: Wish, addresses: str) -> Shell:
    """See that there is room, and let the node before in. `addresses`: it may come from there only."""
    values = {"from": addresses, "keep": str(wish.keep_free), "hours": str(KEY_HOURS)}
    return Shell(_made(wish.path, values, _COMMON, _LET_IN))


def copy(wish: Wish, to: Place) -> Shell:
    known = "\n".join(f"{to.address if to.port == 22 else f'[{to.address}]:{to.port}'} {one}" for one in to.keys)
    values = {
        "node": to.node,
        "user": to.user,
        "address": to.address,
        "port": str(to.port),
        "known": known,
        "ciphers": CIPHERS,
        "streams": str(max(1, min(9, wish.streams))),
        "idle": str(IDLE_S),
        "hours": str(KEY_HOURS),
        "checking": _made(wish.path, {}, _COMMON, _CHECK, _FAR_CHECK),
    }
    return Shell(_made(wish.path, values, _COMMON, _COPY))


def publish(path: str) -> Shell:
    return Shell(_made(path, {}, _COMMON, _CHECK, _PUBLISH))


def verify(path: str) -> Shell:
    return Shell(_made(path, {}, _COMMON, _CHECK, _VERIFY))


def remove(path: str) -> Shell:
    return Shell(_made(path, {}, _COMMON, _REMOVE))
