"""What the SSH client, sudo and docker's own command say when they refuse. Each with its own remedy."""

from __future__ import annotations

import re

from apps.diagnosis.alike import Found
from apps.diagnosis.book import Act, Rule, counted
from apps.diagnosis.signs import EFFECT, Sign
from apps.diagnosis.story import Line, Story


def _sign(trigger: str, pattern: str, reason: str, cause: str = "", **more: object) -> Sign:
    return Sign(trigger, re.compile(pattern), reason, cause=cause, kind="ssh", **more)  # type: ignore[arg-type]


def _methods(match: Found) -> dict[str, object]:
    methods = [method.strip() for method in match["methods"].split(",")]
    open_to_passwords = {"password", "keyboard-interactive"} & set(methods)
    return {
        "methods": methods,
        "cause": "key_not_authorised_password_possible" if open_to_passwords else "key_not_authorised",
    }


SIGNS: tuple[Sign, ...] = (
    _sign("identification", r"REMOTE HOST IDENTIFICATION HAS CHANGED", "host_key_changed"),
    _sign("known", r"No \S+ host key is known for (?P<host>\S+)", "host_key_unknown", "unknown_host_key"),
    _sign(
        "negotiate offer",
        r"no matching (?P<what>[\w ]{3,40}) found\. Their offer|Unable to negotiate with",
        "ssh_incompatible",
    ),
    _sign("incompatiblepeer", r"IncompatiblePeer: ", "ssh_incompatible"),
    _sign("badhostkeyexception", r"BadHostKeyException: ", "host_key_changed"),
    _sign("known_hosts", r"Server '?\S+?'? not found in known_hosts", "host_key_unknown", "unknown_host_key"),
    _sign("unprotected", r"WARNING: UNPROTECTED PRIVATE KEY FILE", "ssh_auth", "key_permissions"),
    _sign("passphrase", r"incorrect passphrase supplied to decrypt private key", "ssh_auth", "key_passphrase"),
    _sign("passwordrequiredexception", r"PasswordRequiredException: ", "ssh_auth", "key_passphrase"),
    _sign(
        "authenticationexception badauthenticationtype",
        r"AuthenticationException: |BadAuthenticationType: ",
        "ssh_auth",
        "key_not_authorised",
        strength=EFFECT,
    ),
    _sign("account available", r"^This account is currently not available", "ssh_auth", "account_closed"),
    _sign("expired", r"password has expired", "ssh_auth", "account_closed"),
    _sign(
        "booting",
        r"System is booting up\. Unprivileged users are not permitted",
        "ssh_busy",
        "overloaded_or_booting",
        values={"state": "overloaded_or_booting"},
    ),
    _sign(
        "closed reset",
        r"^Connection (?:closed|reset) by [\w.:-]+ port (?!65535)\d+",
        "ssh_busy",
        "closed_before_login",
        strength=EFFECT,
    ),
    _sign("novalidconnectionserror", r"NoValidConnectionsError: ", "ssh_refused", "refused"),
    _sign("channelexception", r"ChannelException\(1, ", "jump_refused"),
    _sign("channelexception", r"ChannelException\([23], ", "jump_unreachable"),
    _sign("session", r"Session open refused by peer", "ssh_busy", "too_many_sessions"),
    _sign("gaierror", r"socket\.gaierror: \[Errno -\d\]", "dns", strength=EFFECT),
    _sign("verification", r"Host key verification failed", "host_key_unknown", "unknown_host_key", strength=EFFECT),
    _sign("denied", r"Permission denied \((?P<methods>[a-z][a-z0-9,@. -]{2,200})\)", "ssh_auth", extract=_methods),
    _sign("authentication", r"Too many authentication failures", "ssh_auth", "too_many_keys"),
    _sign(
        "banner",
        r"timed out during banner exchange|Error reading SSH protocol banner",
        "ssh_busy",
        "overloaded_or_booting",
        values={"state": "overloaded_or_booting"},
    ),
    _sign(
        "kex_exchange_identification",
        r"kex_exchange_identification: .*(?:closed|reset)",
        "ssh_busy",
        "overloaded_or_booting",
        values={"state": "overloaded_or_booting"},
    ),
    _sign("refused", r"connect to (?:host|address) \S+ port \d+: Connection refused", "ssh_refused", "refused"),
    _sign(
        "timed",
        r"connect to (?:host|address) \S+ port \d+: (?:Connection|Operation) timed out",
        "ssh_timeout",
        "timeout",
    ),
    _sign("route", r"connect to (?:host|address) \S+ port \d+: No route to host", "no_route"),
    _sign("unreachable", r"connect to (?:host|address) \S+ port \d+: Network is unreachable", "no_route"),
    _sign("down", r"connect to (?:host|address) \S+ port \d+: Host is down", "no_route"),
    _sign("resolve", r"Could not resolve hostname (?P<host>\S+?):? ", "dns"),
    _sign("prohibited", r"administratively prohibited", "jump_refused"),
    _sign("forwarding", r"stdio forwarding failed", "jump_unreachable", strength=EFFECT),
    _sign("channel", r"channel \d+: open failed: connect failed", "jump_unreachable", strength=EFFECT),
    _sign(
        "disconnect timeout closed",
        r"client_loop: send disconnect|Timeout, server \S+ not responding|Connection to \S+ closed by remote host",
        "ssh_timeout",
        "connection_dropped",
        strength=1,
    ),
    _sign("password", r"sudo: a password is required|sudo: \d+ incorrect password", "sudo_denied", "sudo_password"),
    _sign(
        "sudo",
        r"^sudo: .{0,40}(?:Passwort|mo[t] de passe|contraseña|senha|hasło|пароль|密码|パスワード).{0,40}$",
        "sudo_denied",
        "sudo_password",
    ),
    _sign("interactive", r"sudo(?:-rs)?: interactive authentication is required", "sudo_denied", "sudo_password"),
    _sign("privileges", r"sudo: The \"no new privileges\" flag is set", "sudo_denied", "no_new_privileges"),
    _sign(
        "required",
        r"(?:Interactive authentication required|Access denied as the requested operation requires interactive)",
        "sudo_denied",
        "sudo_not_allowed",
    ),
    _sign(
        "illegal badly fish unsupported",
        r"^Illegal variable name\.|^Badly placed \(\)'s\.|^fish: (?!Unknown command)\S|Unsupported use of '='",
        "bad_answer",
        "foreign_shell",
    ),
    _sign("terminal", r"sudo: a terminal is required to read the password", "sudo_denied", "sudo_password"),
    _sign("tty", r"sudo: (?:no tty present|sorry, you must have a tty)", "sudo_denied", "sudo_password"),
    _sign("sudoers", r"is not in the sudoers file", "sudo_denied", "not_in_sudoers"),
    _sign("allowed", r"user \S+ is not allowed to (?:execute|run)", "sudo_denied", "sudo_not_allowed"),
    Sign(
        "docker",
        re.compile(r"permission denied while trying to connect to the [Dd]ocker (?:daemon socket|API)"),
        "docker_denied",
        kind="docker",
    ),
    Sign("docker", re.compile(r"Cannot connect to the Docker daemon"), "docker_down", kind="docker"),
    Sign("docker", re.compile(r"docker: (?:command )?not found"), "docker_missing", kind="docker"),
    Sign(
        "container",
        re.compile(r"Conflict\. The container name \"(?P<container>[^\"]+)\" is already in use"),
        "foreign_container",
        kind="docker",
        extract=lambda match: {"container": match["container"]},
    ),
    Sign(
        "image",
        re.compile(r"Unable to find image '(?P<image>[^']+)' locally|No such image: (?P<other>\S+)"),
        "image_missing",
        EFFECT,
        kind="docker",
        extract=lambda match: {"image": match["image"] or match["other"]},
    ),
    Sign(
        "allocated",
        re.compile(r"Bind for \S+:(?P<port>\d+) failed: port is already allocated"),
        "port_busy",
        cause="port_in_use",
        kind="docker",
        extract=lambda match: {"port": int(match["port"])},
    ),
)


def _unanswered(story: Story, match: Found, line: Line) -> None:
    story.warn("no_answer", "The host does not answer to ping", line, severity="warning")


def _noise(name: str, title: str) -> Act:
    return lambda story, match, line: story.warn(name, title, line)


def _memory(story: Story, match: Found, line: Line) -> None:
    """One row of `free -b`: a value that must survive the noise of a foreign locale."""
    story.fact(mem_total_bytes=int(match["total"]), available_bytes=int(match["available"]))


def _ping(story: Story, match: Found, line: Line) -> None:
    received = int(match["received"])
    story.fact(sent=int(match["sent"]), received=received, answers=received > 0)
    if not received:
        _unanswered(story, match, line)


def _too_long(story: Story, match: Found, line: Line) -> None:
    if match["mtu"]:
        story.fact(mtu=int(match["mtu"]))
    story.warn("mtu_too_small", "The packet is larger than the MTU on this way", line, severity="warning")


def _rule(kind: str, trigger: str, pattern: str, act: Act, votes: int = 1) -> Rule:
    return Rule(kind, trigger, re.compile(pattern), act, votes)


RULES: tuple[Rule, ...] = (
    _rule(
        "ssh",
        "locale",
        r"setlocale: LC_\w+: cannot change locale|perl: warning: (?:Setting locale failed|Falling back)|manpath: "
        r"can't set the locale",
        _noise("locale", "The node lacks our locale; the output counts all the same"),
        2,
    ),
    _rule(
        "ssh", "added", r"Warning: Permanently added", _noise("host_key_added", "ssh accepted a new host key by itself")
    ),
    _rule("ssh", "mem", r"^Mem:\s+(?P<total>\d{7,20})(?:\s+\d+){4}\s+(?P<available>\d+)\s*$", _memory),
    _rule(
        "ssh",
        "resolve",
        r"^sudo: unable to resolve host",
        _noise("sudo_hostname", "The node can't resolve its own name; sudo works all the same"),
        2,
    ),
    _rule(
        "ping", "long", r"(?:local error: message too long|[Mm]essage too long)(?:, mtu=(?P<mtu>\d+))?", _too_long, 2
    ),
    _rule("ping", "ping", r"^PING \S+ \(", counted, 2),
    _rule("ping", "received", r"(?P<sent>\d+) packets transmitted, (?P<received>\d+) (?:packets )?received", _ping, 3),
)
