"""What a node itself says: the kernel's log (memory, GPU), systemd about its units, docker about a container's start."""

from __future__ import annotations

import re

from apps.diagnosis.alike import Found
from apps.diagnosis.book import Act, Rule, counted
from apps.diagnosis.signs import ECHO, EFFECT, Sign, number
from apps.diagnosis.story import Line, Story


def _sign(trigger: str, pattern: str, reason: str, cause: str = "", *, kind: str = "kernel", **more: object) -> Sign:
    return Sign(trigger, re.compile(pattern), reason, cause=cause, kind=kind, **more)  # type: ignore[arg-type]


def _named(match: Found) -> dict[str, object]:
    return {name: number(value) for name, value in match.groupdict().items() if value is not None}


def _warns(name: str, title: str) -> Act:
    return lambda story, match, line: story.warn(name, title, line, severity="warning")


def _task(story: Story, match: Found, line: Line) -> None:
    """The line before the kill says whose memory ran out: the node's or that of one cgroup."""
    everyone = match["constraint"] == "CONSTRAINT_NONE" or "global_oom" in line.text
    story.first(scope="global" if everyone else "cgroup")


def _unit_failed(story: Story, match: Found, line: Line) -> None:
    story.first(unit=match["unit"])


def _rule(kind: str, trigger: str, pattern: str, act: Act, votes: int = 2) -> Rule:
    return Rule(kind, trigger, re.compile(pattern), act, votes)


RULES: tuple[Rule, ...] = (
    _rule("kernel", "oom", r"oom-kill:constraint=(?P<constraint>\w+),", _task, 3),
    _rule("kernel", "invoked", r"invoked oom-killer: ", counted, 3),
    _rule(
        "kernel",
        "blocked",
        r"task \S+ blocked for more than \d+ seconds",
        _warns("task_blocked", "A task of the kernel waits for very long"),
        3,
    ),
    _rule("kernel", "soft", r"soft lockup - CPU#\d+ stuck", _warns("soft_lockup", "A processor was stuck"), 3),
    _rule(
        "kernel",
        "xid",
        r"NVRM: Xid \(.{1,40}\): (?P<xid>\d+)",
        lambda story, match, line: story.first(xid=int(match["xid"])),
        3,
    ),
    _rule("docker", "daemon", r"Error response from daemon: ", counted, 1),
    _rule("systemd", "result", r"(?P<unit>\S+\.service): Failed with result", _unit_failed, 3),
    _rule("systemd", "exited", r"(?P<unit>\S+\.service): Main process exited, code=", _unit_failed, 3),
)


def _curl(match: Found) -> dict[str, object]:
    return {"curl": int(match["code"])}


SIGNS: tuple[Sign, ...] = (
    *(
        Sign(
            "curl",
            re.compile(r"^curl: \((?P<code>" + codes + r")\) "),
            reason,
            cause=cause,
            kind="api",
            extract=_curl,
        )
        for codes, reason, cause in (
            ("7", "not_listening", ""),
            ("6", "dns", ""),
            ("28", "busy_or_hung", ""),
            ("52|55|56", "exited", "died"),
            ("18", "stream_broken", ""),
            ("35", "other_service", ""),
        )
    ),
    _sign(
        "kill",
        r"Out of memory: Kill process (?P<pid>\d+) \((?P<process>[^)]+)\)",
        "oom_host",
        "oom_killed",
        extract=_named,
    ),
    _sign(
        "oomd",
        r"systemd-oomd(?:\[\d+\])?: Killed (?:\S*/)?(?P<killed_unit>[^/\s]+) due to ",
        "oom_host",
        "oomd",
        extract=_named,
        values={"scope": "oomd"},
    ),
    _sign("bus", r"GPU has fallen off the bus", "gpu_lost", "gpu_fallen_off_the_bus"),
    _sign("xid", r"NVRM: Xid \(.{1,40}\): (?P<xid>48|79|95|119|120|154)\b", "gpu_lost", extract=_named),
    _sign(
        "xid",
        r"NVRM: Xid \(.{1,40}\): (?P<xid>13|31|43|45|62|69)\b",
        "engine_crashed",
        "gpu_fault",
        strength=EFFECT,
        extract=_named,
    ),
    _sign("mismatch", r"NVRM: API mismatch", "driver_mismatch"),
    _sign(
        "oom",
        r"(?P<unit>\S+\.service): (?:Failed with result 'oom-kill'|A process of this unit has been killed by the OOM killer)",
        "oom_host",
        "oom_killed",
        kind="systemd",
        extract=_named,
    ),
    _sign(
        "repeated",
        r"(?P<unit>\S+\.service): Start request repeated too quickly",
        "exited",
        "start_limit",
        kind="systemd",
        strength=ECHO,
        extract=_named,
    ),
    _sign(
        "exited",
        r"(?P<unit>\S+\.service): Main process exited, code=(?P<how>\w+), status=(?P<status>\d+)",
        "exited",
        kind="systemd",
        strength=ECHO,
        extract=_named,
    ),
    _sign(
        "unit",
        r"(?:Failed to \w+|Unit) (?P<unit>\S+\.(?:service|timer|socket))(?:: Unit \S+)? (?:not found|could not be found)",
        "program_missing",
        "unit_missing",
        kind="systemd",
        extract=_named,
    ),
    _sign(
        "adding",
        r"error gathering device information while adding custom device \"(?P<device>[^\"]+)\"",
        "bad_args",
        "device_missing",
        kind="docker",
        extract=_named,
    ),
    _sign(
        "source",
        r"bind source path does not exist: (?P<path>\S+?)\.?\s*$",
        "model_path_missing",
        "mount_source_missing",
        kind="docker",
        extract=_named,
    ),
    _sign(
        "container",
        r"No such container: (?P<container>\S+)",
        "vanished",
        "no_such_container",
        kind="docker",
        extract=_named,
    ),
    _sign(
        "bind",
        r"failed to bind host port for (?P<host>[\d.]+):(?P<port>\d+):.{0,60}address already in use",
        "port_busy",
        "port_in_use",
        kind="docker",
        extract=_named,
    ),
)
