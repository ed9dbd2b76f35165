"""The scripts of a provision run: fixed text, their values quoted in front of it.

Each remembers on the node what it changes before it changes it, in a record that only its owner may read (old network files
hold passphrases, so they never leave the node): /var/lib/sparkweb/undo/CODE.STEP for root's, the same under
~/.local/state/sparkweb for the user's own. CODE belongs to the run. In a record:

- files/N.path, files/N.old (absent where there was no file), files/N.new (SHA-256 of what we left there);
- folders: folders that were not there before; values: `name=value`, how things stood.

`put_back` undoes from a record alone, and refuses what somebody else changed since.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from apps.shell import Command, Shell

ROOT_BASE = "/var/lib/sparkweb"
NETWORK_STATE = f"{ROOT_BASE}/fabric"  # armed, kept or reverted: for whoever asks
SUDO_VARIABLE = "SPARKWEB_SUDO"
CODE_VARIABLE = "SPARKWEB_CODE"

_COMMON = r"""
fail() { printf 'sparkweb: %s: %s\n' "$1" "$2"; exit 1; }
nothing() { printf 'nothing to do, because %s\n' "$1"; exit 0; }
"""

_RECORD = r"""
remember() {
  [ ! -d "$record/files" ] || return 0
  mkdir -p "$base" "$base/undo"; chmod 700 "$base/undo"; mkdir -p "$record/files"
}
folders() {
  [ -n "$1" ] && [ ! -d "$1" ] || return 0
  folders "${1%/*}"
  remember; mkdir "$1"; printf '%s\n' "$1" >>"$record/folders"
}
number() {
  n=1
  while [ -e "$record/files/$n.path" ] && [ "$(cat "$record/files/$n.path")" != "$1" ]; do n=$((n + 1)); done
}
keep() {
  remember; number "$1"
  [ ! -e "$record/files/$n.path" ] || return 0
  [ ! -e "$1" ] || cp -p -- "$1" "$record/files/$n.old"
  printf '%s\n' "$1" >"$record/files/$n.path"
}
seal() { number "$1"; sha256sum <"$1" >"$record/files/$n.new"; }
put() {
  folders "${1%/*}"; keep "$1"
  cat >"$1.sparkweb-new"; chmod "$2" "$1.sparkweb-new"; mv -f -- "$1.sparkweb-new" "$1"; seal "$1"
}
same() { [ -f "$1" ] && [ "$(sha256sum <"$1")" = "$(printf '%s' "$2" | sha256sum)" ]; }
said() { remember; printf '%s=%s\n' "$1" "$2" >>"$record/values"; }
"""

DOCKER = r"""
getent group docker >/dev/null || fail docker_missing "there is no group docker on this node: install Docker first"
case " $(id -nG -- "$user") " in *" docker "*) nothing "$user is in the group docker" ;; esac
said member no
usermod -aG docker -- "$user"
case " $(id -nG -- "$user") " in
  *" docker "*) echo "$user is in the group docker from the next login on" ;;
  *) fail docker_denied "usermod did not add $user to the group docker" ;;
esac
"""
DOCKER_BACK = r"""
[ "$(value member)" != no ] || gpasswd -d "$user" docker
"""

TOOLKIT = r"""
registered() { docker info --format "{{json .Runtimes}}" 2>/dev/null | grep -q '"nvidia"'; }
command -v docker >/dev/null || fail docker_missing "Docker is not installed"
if registered; then nothing "Docker knows the runtime nvidia"; fi
command -v nvidia-ctk >/dev/null || fail toolkit_missing "nvidia-ctk is not there: install the package nvidia-container-toolkit"
folders /etc/docker
keep /etc/docker/daemon.json
nvidia-ctk runtime configure --runtime=docker
seal /etc/docker/daemon.json
systemctl reload docker
left=10
until registered; do
  [ "$left" -gt 0 ] || fail toolkit_missing "Docker does not know the runtime nvidia after a reload; restart it when no container runs"
  sleep 1; left=$((left - 1))
done
echo "Docker knows the runtime nvidia; it was reloaded, no container was touched"
"""
TOOLKIT_BACK = r"""
systemctl reload docker
"""

LINGER = r"""
[ ! -e "/var/lib/systemd/linger/$user" ] || nothing "$user lingers"
said linger no
loginctl enable-linger "$user"
[ -e "/var/lib/systemd/linger/$user" ] || [ "$(loginctl show-user "$user" -p Linger --value)" = yes ] ||
  fail permission_denied "loginctl did not let $user linger"
echo "$user lingers: logind leaves the shared memory of an engine alone"
"""
LINGER_BACK = r"""
[ "$(value linger)" != no ] || loginctl disable-linger "$user"
"""

LIMITS = r"""
if same "$file" "$content"; then nothing "$file says so already"; fi
printf '%s' "$content" | put "$file" 644
cat "$file"
echo "counts from the next login on"
"""

CLOCK = r"""
[ "$(timedatectl show -p NTP --value)" != yes ] || nothing "time synchronisation is on"
said ntp no
timedatectl set-ntp true || fail clock_skew "timedatectl could not switch it on: is systemd-timesyncd or chrony installed?"
[ "$(timedatectl show -p NTP --value)" = yes ] || fail clock_skew "time synchronisation is still off"
echo "time synchronisation is on"
"""
CLOCK_BACK = r"""
[ "$(value ntp)" != no ] || timedatectl set-ntp false
"""

FOLDERS = r"""
changed=
own() {
  [ "$(stat -c %U "$1")" != "$user" ] || return 0
  said owner "$(stat -c '%u:%g' "$1") $1"
  chown "$user:" "$1"; changed=1; echo "$1 belongs to $user"
}
for folder in "$models" "$home/.cache/huggingface"; do
  [ -d "$folder" ] || { folders "$folder"; changed=1; echo "made $folder"; }
  own "$folder"
  case $folder in "$home"/*) own "$home/.cache" ;; esac
  df -h -- "$folder" | tail -n 1 | { read -r disk size used free rest; echo "$folder: $free of $size free on $disk"; }
done
[ -n "$changed" ] || nothing "$models and the cache are there and belong to $user"
"""
FOLDERS_BACK = r"""
values owner | while read -r owner folder; do [ ! -d "$folder" ] || chown "$owner" "$folder"; done
"""

SUDOERS = r"""
command -v visudo >/dev/null || fail program_missing "visudo is not there, so nobody could check the file before it counts"
if same "$file" "$content"; then nothing "$file says exactly this"; fi
visudo -c || fail sudo_denied "visudo complains about what is there already; nothing was changed"
remember
printf '%s' "$content" >"$record/candidate"; chmod 440 "$record/candidate"
visudo -c -f "$record/candidate" || fail sudo_denied "visudo refuses this file; nothing was changed"
rm -f "$record/candidate"
printf '%s' "$content" | put "$file" 440
if ! visudo -c; then
  rm -f -- "$file"; number "$file"
  [ ! -e "$record/files/$n.old" ] || cp -p -- "$record/files/$n.old" "$file"
  rm -rf "$record"
  fail sudo_denied "visudo refuses the whole with this file in it; it was taken out again"
fi
printf '%s' "$content" | sha256sum | cut -d" " -f1 | put "$base/marks/sudoers" 644
cat "$file"
"""

EARLYOOM = r"""
[ "$(systemctl is-active earlyoom.service)" != active ] || nothing "earlyoom runs"
if ! command -v earlyoom >/dev/null; then
  command -v apt-get >/dev/null || fail program_missing "earlyoom is not installed, and there is no apt-get"
  said installed no
  DEBIAN_FRONTEND=noninteractive apt-get $proxy install -y --no-install-recommends earlyoom </dev/null ||
    fail program_missing "apt-get could not install earlyoom"
fi
said enabled "$(systemctl is-enabled earlyoom.service || :)"
printf '%s' "$content" | put /etc/default/earlyoom 644
systemctl enable earlyoom.service
systemctl restart earlyoom.service
[ "$(systemctl is-active earlyoom.service)" = active ] || fail program_missing "earlyoom does not run"
echo "earlyoom runs"
"""
EARLYOOM_BACK = r"""
[ "$(value enabled)" = enabled ] || systemctl disable earlyoom.service || :
systemctl stop earlyoom.service || :
[ "$(value installed)" != no ] || DEBIAN_FRONTEND=noninteractive apt-get remove -y earlyoom </dev/null
"""

GPUCLOCK = r"""
if same "$file" "$content" && [ "$(systemctl is-active "$unit")" = active ]; then nothing "$unit caps the clock already"; fi
command -v nvidia-smi >/dev/null || fail program_missing "nvidia-smi is not there"
printf '%s' "$content" | put "$file" 644
systemctl daemon-reload
systemctl enable "$unit"
systemctl restart "$unit"
[ "$(systemctl is-active "$unit")" = active ] || fail program_missing "$unit did not start: this GPU's clock can't be capped"
cat "$file"
"""
GPUCLOCK_BEFORE = r"""
systemctl disable "$unit" || :
systemctl stop "$unit" || :
"""
GPUCLOCK_BACK = r"""
systemctl daemon-reload
"""

# The network, as it was: used by the watch on the node and by a restore alike. `links` in values: INTERFACE MECHANISM
# up|down MTU ADDRESS…
_NETWORK_BACK = r"""
files_back() {
  for path in "$record"/files/*.path; do
    [ -e "$path" ] || continue
    file=$(cat "$path"); old=${path%.path}.old
    if [ -e "$old" ]; then cp -p -- "$old" "$file.sparkweb-new" && mv -f -- "$file.sparkweb-new" "$file"; else rm -f -- "$file"; fi
  done
}
network_back() {
  files_back
  used=" $(sed -n 's/^link=[^ ]* \([a-z]*\).*/\1/p' "$record/values" | tr '\n' ' ')"
  case $used in *" netplan "*) netplan apply || : ;; esac
  case $used in *" networkd "*) networkctl reload || : ;; esac
  sed -n 's/^link=//p' "$record/values" | while read -r interface mechanism was_up was_mtu addresses; do
    if [ "$mechanism" = networkmanager ]; then
      nmcli connection delete "sparkweb-$interface" || :
      connection=$(sed -n "s/^connection=$interface //p" "$record/values")
      [ -z "$connection" ] || nmcli connection up "$connection" || :
    fi
    [ "$mechanism" != networkd ] || networkctl reconfigure "$interface" || :
    for address in $(ip -o -4 addr show dev "$interface" | sed 's/.* inet \([0-9./]*\).*/\1/'); do
      case " $addresses " in *" $address "*) ;; *) ip addr del "$address" dev "$interface" || : ;; esac
    done
    ip link set dev "$interface" mtu "$was_mtu"
    ip link set dev "$interface" "$was_up"
    [ "$was_up" = up ] || continue
    for address in $addresses; do
      case " $(ip -o -4 addr show dev "$interface" | sed 's/.* inet \([0-9./]*\).*/\1/' | tr '\n' ' ')" in
        *" $address "*) ;;
        *) case $address in 169.254.*) scope=link ;; *) scope=global ;; esac
          ip addr add "$address" scope "$scope" dev "$interface" ;;
      esac
    done
  done
}
"""
WATCH = (
    r"""
record=$1; left=$2; state=$3
echo armed >"$state.new"; chmod 644 "$state.new"; mv -f "$state.new" "$state"
while [ "$left" -gt 0 ]; do
  [ ! -e "$record/decided" ] || exit 0
  sleep 1; left=$((left - 1))
done
mkdir "$record/decided" 2>/dev/null || exit 0
echo reverting >"$state"
"""
    + _NETWORK_BACK
    + r"""
network_back
echo reverted >"$state"
"""
)

FABRIC = r"""
stands() {
  up=down; case $(ip -o link show dev "$1") in *[\<,]UP[,\>]*) up=up ;; esac
  read -r now <"/sys/class/net/$1/mtu"
  printf '%s %s' "$up" "$now"
  ip -o -4 addr show dev "$1" | sed 's/.* inet \([0-9./]*\).*/ \1/' | tr -d '\n'
}
is_so() { case "$(stands "$1") " in "up $mtu"*" $2 "*) return 0 ;; esac; return 1; }
# networkd takes an address away and gives it back while it configures a link.
stays_so() {
  case $3 in networkd | netplan) case $(networkctl --no-legend list "$1" 2>/dev/null) in *configuring* | *pending*) return 1 ;; esac ;; esac
  is_so "$1" "$2" && sleep 1 && is_so "$1" "$2"
}
open=
while read -r interface address mechanism; do
  [ -d "/sys/class/net/$interface" ] || fail fabric_down "there is no interface $interface"
  is_so "$interface" "$address" || open=1
done <<END
$links
END
[ -n "$open" ] || nothing "every link is up with its address and an MTU of $mtu"
remember
while read -r interface address mechanism; do
  said link "$interface $mechanism $(stands "$interface")"
  if [ "$mechanism" = networkmanager ]; then
    said connection "$interface $(nmcli -t -f DEVICE,CONNECTION device | sed -n "s/^$interface://p")"
  fi
done <<END
$links
END
sed -n 's/^link=/before: /p' "$record/values"
# Nobody's child, session or mark, and with systemd in a scope of its own: what ends this job does not end the watch.
watch_apart() {
  set -- /bin/sh -c "$watch" sparkweb-watch "$record" "$revert_s" "$state"
  if [ -d /run/systemd/system ] && systemd-run --scope --quiet --collect true; then
    set -- systemd-run --scope --quiet --collect "$@"
  fi
  env -u SPARKWEB_KEEPER -u SPARKWEB_JOB -u SPARKWEB_SUDO setsid "$@" &
}
rm -f "$state"
( watch_apart ) </dev/null >/dev/null 2>&1
tries=100
until [ -e "$state" ]; do
  tries=$((tries - 1))
  [ $tries -gt 0 ] || fail fabric_down "the watch that puts the network back did not begin; nothing was changed"
  sleep 0.1
done
echo "this node puts its network back by itself in $revert_s s unless it is told to keep it"
used=" $(printf '%s\n' "$links" | cut -d" " -f3 | sort -u | tr '\n' ' ')"
case $used in *" netplan "*)
  folders /etc/netplan
  printf '%s' "$netplan" | put /etc/netplan/60-sparkweb-fabric.yaml 600
  netplan generate || fail fabric_down "netplan refuses the file; the node puts the old one back"
  netplan apply ;;
esac
while read -r interface address mechanism; do
  case $mechanism in
    networkd)
      folders /etc/systemd/network
      {
        printf '[Match]\nName=%s\n\n[Link]\nMTUBytes=%s\n\n' "$interface" "$mtu"
        printf '[Network]\nAddress=%s\nDHCP=no\nLinkLocalAddressing=ipv6\n' "$address"
      } | put "/etc/systemd/network/05-sparkweb-$interface.network" 644
      networkctl reload
      networkctl reconfigure "$interface" ;;
    networkmanager)
      nmcli connection add type ethernet con-name "sparkweb-$interface" ifname "$interface" connection.autoconnect-priority 100 \
        ipv4.method manual ipv4.addresses "$address" ipv6.method link-local 802-3-ethernet.mtu "$mtu"
      nmcli connection up "sparkweb-$interface" ;;
    ip)
      ip link set dev "$interface" up mtu "$mtu"
      for other in $(ip -o -4 addr show dev "$interface" | sed 's/.* inet \([0-9./]*\).*/\1/'); do
        case $other in 169.254.*) ip addr del "$other" dev "$interface" ;; esac
      done
      ip addr replace "$address" dev "$interface" ;;
  esac
done <<END
$links
END
while read -r interface address mechanism; do
  left=20
  until stays_so "$interface" "$address" "$mechanism"; do
    [ "$left" -gt 0 ] ||
      fail fabric_down "$interface is $(stands "$interface"), not up $mtu $address; the node puts its network back"
    sleep 1; left=$((left - 1))
  done
  echo "$interface: $(stands "$interface") by $mechanism"
done <<END
$links
END
"""
FABRIC_KEEP = r"""
[ -d "$record" ] || nothing "this run changed no network here"
if mkdir "$record/decided" 2>/dev/null || [ -e "$record/kept" ]; then
  : >"$record/kept"; echo kept >"$state"; echo "the new network stays"
else
  fail fabric_reverted "the node has put its old network back: nobody reached it in time"
fi
"""
FABRIC_BACK = r"""
if [ ! -e "$state" ] || [ "$(cat "$state")" != reverted ]; then
  mkdir "$record/decided" 2>/dev/null || :
  network_back
fi
rm -f "$state"
"""

# A proxy over SSH, a child of the job: it goes when the job goes.
PROXY_LEAD = """
ssh -i "$HOME/.ssh/sparkweb_nodes" -o IdentitiesOnly=yes -o BatchMode=yes -o ExitOnForwardFailure=yes -o ConnectTimeout=10 \\
  -o StrictHostKeyChecking=yes -o UserKnownHostsFile="$HOME/.ssh/sparkweb_nodes_hosts" -N -D 127.0.0.1:{port} -- {target} </dev/null &
proxy=$!; trap 'kill "$proxy" 2>/dev/null || :' EXIT; sleep 2
kill -0 "$proxy" 2>/dev/null || {{ echo "sparkweb: hub_unreachable: no proxy through {target}"; exit 1; }}
"""

KEY = r"""
set -eu
umask 077
file=$HOME/.ssh/authorized_keys
[ -d "$HOME/.ssh" ] || mkdir "$HOME/.ssh"
if [ -f "$file" ] && grep -qF -- "$blob" "$file"; then echo "nothing to do, because the key is there"; exit 0; fi
if [ -s "$file" ] && [ -n "$(tail -c 1 "$file")" ]; then echo >>"$file"; fi
printf '%s\n' "$line" >>"$file"
echo "the key stands in $file"
"""
KEY_BACK = r"""
file=$HOME/.ssh/authorized_keys
[ -f "$file" ] && grep -qF -- "$blob" "$file" || nothing "the key is not there"
umask 077
grep -vF -- "$blob" "$file" >"$file.sparkweb-new" || :
cat "$file.sparkweb-new" >"$file"; rm -f "$file.sparkweb-new"
echo "the key was taken out of $file: this node can no longer be reached with it"
"""

PEERS_MAKE = r"""
file=$HOME/.ssh/sparkweb_nodes
if [ -f "$file" ] && [ -f "$file.pub" ]; then
  echo "nothing to do, because there is a key in $file"
else
  command -v ssh-keygen >/dev/null || fail program_missing "ssh-keygen is not there"
  folders "$HOME/.ssh"
  keep "$file"; keep "$file.pub"
  rm -f "$file" "$file.pub"
  ssh-keygen -q -t ed25519 -N "" -C sparkweb-nodes -f "$file"
  seal "$file"; seal "$file.pub"
fi
printf 'sparkweb-value: %s\n' "$(cat "$file.pub")"
"""
PEERS_TRUST = r"""
authorized=$HOME/.ssh/authorized_keys
hosts=$HOME/.ssh/sparkweb_nodes_hosts
added=
while read -r name addresses variable; do
  eval "key=\${$variable-}"
  case $key in "ssh-ed25519 "*) ;; *) fail ssh_auth "$name did not tell its public key" ;; esac
  blob=${key#* }; blob=${blob%% *}
  if [ -f "$authorized" ] && grep -qF -- "$blob" "$authorized"; then continue; fi
  remember
  if [ ! -f "$authorized" ]; then (umask 077; : >"$authorized")
  elif [ ! -e "$record/blobs" ]; then cp -p "$authorized" "$record/authorized.old"; fi
  if [ -s "$authorized" ] && [ -n "$(tail -c 1 "$authorized")" ]; then echo >>"$authorized"; fi
  printf 'from="%s",restrict,port-forwarding ssh-ed25519 %s sparkweb-nodes\n' "$addresses" "$blob" >>"$authorized"
  printf '%s\n' "$blob" >>"$record/blobs"
  added=1; echo "$name may log in from $addresses"
done <<END
$peers
END
if ! same "$hosts" "$known"; then printf '%s' "$known" | put "$hosts" 600; added=1; echo "host keys of the others are pinned in $hosts"; fi
[ -n "$added" ] || nothing "every other node is let in, and its host key is pinned"
"""
PEERS_PROVE = r"""
while read -r name address login; do
  ssh -n -i "$HOME/.ssh/sparkweb_nodes" -o IdentitiesOnly=yes -o BatchMode=yes -o ConnectTimeout=10 -o StrictHostKeyChecking=yes \
    -o UserKnownHostsFile="$HOME/.ssh/sparkweb_nodes_hosts" -- "$login@$address" true ||
    fail ssh_auth "$name at $address does not let this node in"
  echo "$name at $address opens"
done <<END
$peers
END
"""
PEERS_BACK = r"""
authorized=$HOME/.ssh/authorized_keys
if [ -e "$record/blobs" ] && [ -f "$authorized" ]; then
  grep -vF -f "$record/blobs" "$authorized" >"$record/authorized.new" || :
  if [ ! -e "$record/authorized.old" ] && [ ! -s "$record/authorized.new" ]; then rm -f "$authorized"
  elif [ -e "$record/authorized.old" ] && [ "$(cat "$record/authorized.old")" = "$(cat "$record/authorized.new")" ]; then
    cp -p "$record/authorized.old" "$authorized.sparkweb-new"; mv -f "$authorized.sparkweb-new" "$authorized"
  else cat "$record/authorized.new" >"$authorized"; fi
  echo "the other nodes are let in no more"
fi
"""

PING = r"""
command -v ping >/dev/null || { echo "not proved: ping is not installed"; exit 0; }
while read -r interface address name; do
  left=8 # a card that was given another MTU may take its link down for some seconds
  until ping -c 1 -W 1 -I "$interface" "$address" >/dev/null 2>&1; do
    [ "$left" -gt 0 ] || fail fabric_down "$address of $name does not answer $interface, not even small packets"
    sleep 1; left=$((left - 1))
  done
  if ping -M do -s "$size" -c 3 -i 0.3 -W 2 -I "$interface" "$address"; then echo "$name: $size bytes reach $address undivided"
  else fail fabric_packets "packets of $mtu bytes from $interface do not reach $address of $name undivided"; fi
done <<END
$peers
END
"""
MEASURE = r"""
command -v python3 >/dev/null || { echo "not measured: python3 is not installed"; exit 0; }
exec python3 -c "$program" $arguments
"""
# Serve one address or send to it: 64 MiB in pieces of 64 KiB. Ends by itself after 20 s.
BANDWIDTH = """
# sparkweb bandwidth
import socket, sys, time
what, address, port, times = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
size, piece, end = 64 << 20, bytes(65536), time.monotonic() + 20
if what == "serve":
    door = socket.create_server((address, port))
    door.settimeout(20)
    for _ in range(times):
        peer, _ = door.accept()
        peer.settimeout(20)
        left = size
        while left > 0:
            got = len(peer.recv(65536))
            if not got:
                sys.exit("the other end stopped early")
            left -= got
        peer.sendall(b"k")
        peer.close()
    print("served", times)
else:
    while True:
        try:
            peer = socket.create_connection((address, port), timeout=5)
            break
        except OSError as problem:
            if time.monotonic() > end:
                sys.exit(f"{address} does not answer: {problem}")
            time.sleep(0.3)
    peer.settimeout(20)
    begun = time.monotonic()
    for _ in range(size // len(piece)):
        peer.sendall(piece)
    peer.recv(1)
    seconds = time.monotonic() - begun
    print(f"64 MiB to {address} in {seconds:.3f} s: {size * 8 / seconds / 1e9:.2f} Gb/s over one TCP connection")
"""

_PUT_BACK = r"""
[ -d "$record" ] || nothing "no change was recorded"
value() { sed -n "s/^$1=//p" "$record/values" 2>/dev/null | head -n 1; }
values() { sed -n "s/^$1=//p" "$record/values" 2>/dev/null; }
digest() { sha256sum <"$1"; }
for path in "$record"/files/*.path; do
  [ -e "$path" ] || continue
  file=$(cat "$path"); new=${path%.path}.new; old=${path%.path}.old
  [ -e "$file" ] && [ -e "$new" ] || continue
  [ "$(digest "$file")" != "$(cat "$new")" ] || continue
  if [ -e "$old" ] && cmp -s "$old" "$file"; then continue; fi
  fail changed_since "$file was changed by somebody after sparkweb wrote it; it stays, and so does its old content in $record"
done
"""
_PUT_BACK_END = r"""
for path in "$record"/files/*.path; do
  [ -e "$path" ] || continue
  file=$(cat "$path"); old=${path%.path}.old
  if [ -e "$old" ]; then
    cp -p -- "$old" "$file.sparkweb-new"; mv -f -- "$file.sparkweb-new" "$file"; cmp "$old" "$file"; echo "$file is as it was"
  else
    rm -f -- "$file"; echo "$file is gone, as before"
  fi
done
"""
_PUT_BACK_FOLDERS = r"""
if [ -e "$record/folders" ]; then
  sort -r "$record/folders" | while read -r folder; do
    case $folder in "$base"*) ;; *) rmdir "$folder" 2>/dev/null || echo "$folder stays: it is not empty" ;; esac
  done
fi
rm -rf "$record"
rmdir "$base/marks" "$base/undo" "$base" 2>/dev/null || :
echo "put back"
"""


def body(step: str, text: str, values: Mapping[str, str], *, base: str = ROOT_BASE) -> str:
    """The whole script of one step. Its first argument is the run's code; `base` may hold $HOME."""
    named = "\n".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
    record = f'umask 022\nbase="{base}"\nrecord="$base/undo/$1.{step}"'
    return "\n".join(("set -eu", record, named, _COMMON.strip(), _RECORD.strip(), text.strip()))


def back_body(
    step: str, code: str, values: Mapping[str, str], *, before: str = "", after: str = "", base: str = ROOT_BASE
) -> str:
    """The way back of one step from the record that the run with this code left."""
    named = "\n".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
    record = f'umask 022\nbase="{base}"\nrecord="$base/undo/"{shlex.quote(f"{code}.{step}")}'
    network = _NETWORK_BACK if "network_back" in after else ""
    parts = ("set -eu", record, named, _COMMON, _PUT_BACK, network, before, _PUT_BACK_END, after, _PUT_BACK_FOLDERS)
    return "\n".join(part.strip() for part in parts if part.strip())


def as_root(text: str, *, lead: str = "") -> Shell:
    """Run a script as root: directly, by sudo without a password, or by sudo with the password that travels in the
    environment of this job and on sudo's standard input, never in argv. `lead` is done before, as the user."""
    run = '/bin/sh -c "$body" sparkweb "${SPARKWEB_CODE-}"'
    return Shell(
        "\n".join(
            (
                "set -eu",
                f"body={shlex.quote(text)}",
                *((lead.strip(),) if lead else ()),
                'if [ "$(id -u)" = 0 ]; then',
                f"{run} </dev/null",
                f'elif [ -n "${{{SUDO_VARIABLE}-}}" ]; then',
                f"printf '%s\\n' \"${SUDO_VARIABLE}\" | sudo -S -k -p '' -- {run}",
                "else",
                f"sudo -n -- {run} </dev/null",
                "fi",
            )
        )
    )


def key_script(line: str) -> str:
    """Put a public key into authorized_keys, once."""
    blob = line.split()[1] if len(line.split()) > 1 else line
    return f"line={shlex.quote(line)}\nblob={shlex.quote(blob)}\n{KEY.strip()}"


def key_back(line: str) -> str:
    """Take it out again."""
    blob = line.split()[1] if len(line.split()) > 1 else line
    return f"set -eu\nblob={shlex.quote(blob)}\n{_COMMON.strip()}\n{KEY_BACK.strip()}"


def key_shown(line: str) -> str:
    """The same as one line that a person pastes on the node."""
    made = Command.of("printf", "%s\\n", line).text
    return f"umask 077; mkdir -p ~/.ssh && {made} >> ~/.ssh/authorized_keys"


def as_user(text: str) -> Shell:
    """Run a script as the user itself."""
    return Shell(f'body={shlex.quote(text)}\n/bin/sh -c "$body" sparkweb "${{{CODE_VARIABLE}-}}" </dev/null')


SUDO_CHECK = Shell(
    r"""
set -eu
if [ "$(id -u)" = 0 ]; then echo "this user is root"; exit 0; fi
command -v sudo >/dev/null || { echo "sparkweb: sudo_denied: sudo is not installed"; exit 1; }
if [ -n "${SPARKWEB_SUDO-}" ]; then
  if printf '%s\n' "$SPARKWEB_SUDO" | sudo -S -k -p '' -- true 2>/dev/null; then echo "sudo takes the password"; exit 0; fi
  echo "sparkweb: sudo_denied: sudo does not take this password; nothing was changed"; exit 1
fi
if sudo -n -- true 2>/dev/null; then echo "sudo works without a password"; exit 0; fi
echo "sparkweb: sudo_denied: sudo asks for a password and none was given; nothing was changed"; exit 1
""".strip()
)
