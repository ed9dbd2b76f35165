"""What a login meets: sshd's limits, the clock, the user's own units, secrets that stay on the node."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.facts import probe, systemd
from apps.facts.machine import time_sync
from apps.facts.masking import SED, masked
from apps.facts.sheet import Evidence
from apps.facts.sshd import server
from apps.facts.values import SshServer, TimeSync

NONCE = "n0nce4thelogin"

# sshd -T of OpenSSH 9.2p1 on Debian 12, shortened
EFFECTIVE = """\
port 22
addressfamily any
usepam yes
logingracetime 120
x11displayoffset 10
maxauthtries 6
maxsessions 10
clientaliveinterval 0
clientalivecountmax 3
permitrootlogin without-password
usedns no
allowtcpforwarding yes
allowstreamlocalforwarding yes
disableforwarding no
subsystem sftp /usr/lib/openssh/sftp-server
maxstartups 10:30:100
persourcemaxstartups none
ipqos lowdelay throughput
rekeylimit 0 0
permitopen any
permitlisten any
"""


def test_what_sshd_says_itself() -> None:
    assert server("@version OpenSSH_9.2p1\n@effective\n" + EFFECTIVE) == SshServer(
        "9.2p1", 10, 10, 100, "yes", "any", 120, 0, "sshd -T", None
    )
    assert server(EFFECTIVE) == SshServer(None, 10, 10, 100, "yes", "any", 120, 0, "sshd -T", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Port 22\n", (10, 10, 100, "yes", 120, False)),
        ("# MaxSessions 1\nmaxsessions=2\nMaxSessions 3\nPort 22\n", (2, 10, 100, "yes", 120, False)),
        ("MaxStartups 4\nLoginGraceTime 1m30s\n", (10, 4, 4, "yes", 90, False)),
        ("AllowTcpForwarding all\nMaxStartups 5:50:60\n", (10, 5, 60, "yes", 120, False)),
        ("AllowTcpForwarding local\nDisableForwarding yes\n", (10, 10, 100, "no", 120, False)),
        ("Match User bob\n  AllowTcpForwarding no\nMatch all\nMaxSessions 4\n", (4, 10, 100, "yes", 120, True)),
        ("MaxSessions none\nLoginGraceTime x\n", (None, 10, 100, "yes", None, False)),
    ],
)
def test_what_its_files_say(text: str, expected: tuple[object, ...]) -> None:
    found = server("@files\n" + text)
    assert found is not None and found.source == "files"
    assert (
        found.max_sessions,
        found.startups_begin,
        found.startups_full,
        found.tcp_forwarding,
        found.login_grace_s,
        found.conditional,
    ) == expected


def test_nothing_said_is_nothing_known() -> None:
    assert server("") is None
    assert server("@version OpenSSH_9.6p1\n") == SshServer("9.6p1")
    assert server("hello world\nthere it is\n") is None


def test_included_files_count_where_they_stand(tmp_path: Path) -> None:
    folder = tmp_path / "ssh"
    (folder / "sshd_config.d").mkdir(parents=True)
    (folder / "sshd_config").write_text("Include sshd_config.d/*.conf\nMaxSessions 9\nAllowTcpForwarding yes")
    (folder / "sshd_config.d/10-first.conf").write_text("MaxSessions 2\nMatch User bob\nAllowTcpForwarding no\n")
    (folder / "sshd_config.d/20-second.conf").write_text("maxsessions 3\nMaxStartups 3:30:60\n")
    text = probe.script(["sshd"], nonce=NONCE).replace("/etc/ssh", str(folder))
    text = text.replace("/usr/sbin/sshd", "/nowhere/sshd").replace("command -v sshd", "false")
    done = subprocess.run(["/bin/sh", "-s"], input=text.encode(), capture_output=True, timeout=60)
    found = probe.sheet_from("here", 0.0, probe.read(NONCE, done.stdout)).ssh_server
    assert found == SshServer(None, 2, 3, 60, "yes", "any", 120, 0, "files", True)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("sshd") is None, reason="only root may ask sshd")
def test_this_machines_own_sshd() -> None:
    done = subprocess.run(
        ["/bin/sh", "-s"], input=probe.script(["sshd"], nonce=NONCE).encode(), capture_output=True, timeout=60
    )
    found = probe.sheet_from("here", 0.0, probe.read(NONCE, done.stdout)).ssh_server
    assert found is not None and found.version and found.source in {"sshd -T", "files", None}
    if found.source == "sshd -T":
        assert found.max_sessions and found.startups_begin and found.tcp_forwarding


CHRONY = """\
Reference ID    : C0A80101 (192.168.1.1)
Stratum         : 3
Ref time (UTC)  : Mon Nov 30 14:02:11 2026
System time     : 0.000213912 seconds slow of NTP time
Last offset     : -0.000011021 seconds
RMS offset      : 0.000051021 seconds
Leap status     : Normal
"""
TIMESYNC = """\
       Server: 185.125.190.57 (ntp.ubuntu.com)
Poll interval: 34min 8s (min: 32s; max 34min 8s)
         Leap: normal
       Offset: -1.052ms
        Delay: 22.1ms
"""
TABLE = """\
               Local time: Mon 2026-11-30 15:10:02 CET
           Universal time: Mon 2026-11-30 14:10:02 UTC
                Time zone: Europe/Berlin (CET, +0100)
System clock synchronized: yes
              NTP service: inactive
          RTC in local TZ: no
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NTP=yes\nNTPSynchronized=no\nTimezone=Etc/UTC\n", TimeSync(False, True, None, "Etc/UTC")),
        (TABLE, TimeSync(True, False, None, "Europe/Berlin")),
        (TABLE.replace("System clock", "NTP"), TimeSync(True, False, None, "Europe/Berlin")),
        (CHRONY, TimeSync(offset_s=-0.000213912)),
        (CHRONY.replace("slow", "fast"), TimeSync(offset_s=0.000213912)),
        (TIMESYNC, TimeSync(offset_s=0.001052)),
        (TIMESYNC.replace("-1.052ms", "+3us"), TimeSync(offset_s=-0.000003)),
        ("service\tchrony\tactive\n", TimeSync(None, True, "chrony")),
        ("System has not been booted with systemd as init system (PID 1). Can't operate.\n", None),
        ("", None),
    ],
)
def test_who_keeps_the_clock(text: str, expected: TimeSync | None) -> None:
    assert time_sync(text) == expected


USER = """\
Id=qwen.service
Description=Qwen behind llama-server
LoadState=loaded
ActiveState=active
SubState=running
FragmentPath=/home/bob/.config/systemd/user/qwen.service
UnitFileState=enabled
MainPID=4242
ExecStart={ path=/home/bob/run.sh ; argv[]=/home/bob/run.sh --api-key abcdef ; ignore_errors=no ; start_time=[n/a] }

Id=dbus.service
Description=D-Bus User Message Bus
LoadState=loaded
ActiveState=active
SubState=running
FragmentPath=/usr/lib/systemd/user/dbus.service
UnitFileState=static
ExecStart={ path=/usr/bin/dbus-daemon ; argv[]=/usr/bin/dbus-daemon --session ; ignore_errors=no ; start_time=[n/a] }

@file qwen.service\t/home/bob/run.sh
|docker run --rm --name qwen vllm-node vllm serve m
"""


def test_units_of_the_user() -> None:
    (unit,) = systemd.UserUnitsFact.parse(Evidence(USER, "", 0)) or ()
    assert (unit.name, unit.active, unit.enabled, unit.vendor) == ("qwen.service", "active", "enabled", False)
    assert unit.containers == ("qwen",) and "abcdef" not in (unit.exec_start or "")


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (Evidence("", "Failed to connect to bus: No medium found\n", 1), ()),
        (Evidence("", "Failed to connect to user scope bus via local transport: $DBUS_SESSION_BUS_ADDRESS\n", 1), ()),
        (Evidence("", "System has not been booted with systemd as init system (PID 1). Can't operate.\n", 1), ()),
        (Evidence("", "", 0), ()),
        (Evidence("", "Access denied\n", 4), None),
    ],
)
def test_no_manager_of_the_user_is_a_value(evidence: Evidence, expected: tuple[()] | None) -> None:
    assert systemd.UserUnitsFact.parse(evidence) == expected


SECRETS = [
    ("vllm serve m --api-key s3cr3t --port 8000", "vllm serve m --api-key *** --port 8000"),
    ("vllm serve m --api-key=s3cr3t", "vllm serve m --api-key=***"),
    ("--hf-token s3cr3t --max-tokens 8 --token-budget 5", "--hf-token *** --max-tokens 8 --token-budget 5"),
    ("HF_TOKEN=s3cr3t VLLM_API_KEY='s3cr3t' vllm", "HF_TOKEN=*** VLLM_API_KEY='***' vllm"),
    ("-e HF_TOKEN=$HF_TOKEN --api-key $KEY", "-e HF_TOKEN=$HF_TOKEN --api-key $KEY"),
    ("https://bob:s3cr3t@github.com/a/b", "https://bob:***@github.com/a/b"),
    ("git@github.com:a/b http://a:80/x@y", "git@github.com:a/b http://a:80/x@y"),
    ("ray start --redis-password=s3cr3ts3cr3t", "ray start --redis-password=***"),
    ('["--api-key", "s3cr3t", "--port", "1"]', '["--api-key", "***", "--port", "1"]'),
    ("Authorization: Bearer s3cr3ts3cr3t", "Authorization: Bearer ***"),
    ('      API_KEY: "s3cr3t"', '      API_KEY: "***"'),
    ("hf_abcdefghijklmnop nvapi-abcdefghijkl sk-abcdefghijklmnopqrst", "hf_*** nvapi-*** sk-***"),
    (r'"Cmd": "vllm --api-key \"s3cr3t\""', r'"Cmd": "vllm --api-key \"***\""'),
    ('{"a":"http://a:80","x":"b@c"}', '{"a":"http://a:80","x":"b@c"}'),
]


@pytest.mark.parametrize(("text", "expected"), SECRETS)
@pytest.mark.parametrize("tool", [["sed"], ["busybox", "sed"]], ids=" ".join)
def test_secrets_are_masked_on_the_node_and_here(text: str, expected: str, tool: list[str]) -> None:
    assert masked(text) == expected
    assert masked(expected) == expected
    if shutil.which(tool[0]) is None:
        pytest.skip(f"{tool[0]} is not installed")
    done = subprocess.run([*tool, "-e", SED], input=text.encode(), capture_output=True, timeout=20)
    assert done.stdout.decode().rstrip("\n") == expected


@pytest.mark.parametrize("text", ['- "--api-key"\n- "s3cr3t"\n- --port\n', '  "--api-key",\n  "s3cr3t",\n  "x"\n'])
def test_a_secret_on_the_next_line(text: str) -> None:
    done = subprocess.run(["sed", "-e", SED], input=text.encode(), capture_output=True, timeout=20)
    assert done.stdout.decode() == text.replace("s3cr3t", "***")


@given(st.text(max_size=200))
def test_any_text_can_be_masked(text: str) -> None:
    assert isinstance(masked(text), str)


SYSTEMCTL = """#!/bin/sh
[ "$1" = --user ] || exit 1
case $2 in
  list-unit-files) printf 'qwen.service enabled enabled\\ndbus.service static -\\n' ;;
  list-units) printf 'dbus.service loaded active running D-Bus User Message Bus\\nvllm-now.service loaded active running x\\n' ;;
  show) shift 4; printf '%s\\n' "$@" >"$SEEN"; cat "$SHOWN" ;;
esac
"""


def test_the_users_own_units_leave_out_what_the_vendor_brought(tmp_path: Path) -> None:
    """A systemctl that answers as systemd 255 does; the probe's own shell and awk."""
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\ndocker run --rm --name qwen --env API_KEY=s3cr3tvalue vllm-node vllm serve m\n")
    tool = tmp_path / "systemctl"
    tool.write_text(SYSTEMCTL)
    tool.chmod(0o755)
    blocks = USER.partition("@file ")[0].replace("/home/bob/run.sh", str(script))
    transient = (
        blocks.split("\n\n")[0]
        .replace("qwen.service", "vllm-now.service")
        .replace("/home/bob/.config/systemd/user/", "/run/user/1000/systemd/transient/")
    )
    (tmp_path / "shown").write_text(f"{blocks}\n{transient}\n")
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SHOWN": str(tmp_path / "shown"),
        "SEEN": str(tmp_path / "seen"),
    }
    text = probe.script(["user-units"], nonce=NONCE)
    done = subprocess.run(["/bin/sh", "-s"], input=text.encode(), capture_output=True, timeout=60, env=env)
    sections = probe.read(NONCE, done.stdout)
    units = {one.name: one for one in probe.sheet_from("here", 0.0, sections).user_units or ()}
    assert set(units) == {"qwen.service", "vllm-now.service"}
    assert units["qwen.service"].containers == ("qwen",) and units["qwen.service"].enabled == "enabled"
    assert "dbus" not in sections["user-units"].stdout
    assert b"s3cr3t" not in done.stdout and b"abcdef" not in done.stdout
    assert (tmp_path / "seen").read_text().split()[-3:] == ["dbus.service", "qwen.service", "vllm-now.service"]
