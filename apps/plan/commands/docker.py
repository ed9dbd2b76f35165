"""docker, as plans call it. Containers of ours are known by labels, never by their names alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from apps.shell import (
    Command,
    Expanded,
    Shell,
    assign,
    choose,
    forgiving,
    leave,
    pipe,
    quiet,
    say,
    script,
    when,
    words,
)

RUN_VARIABLE = "SPARKWEB_RUN"  # exported to every job by the executor
IDENTITY = (
    '{{index .Config.Labels "sparkweb.deployment"}}/{{index .Config.Labels "sparkweb.revision"}}/'
    '{{index .Config.Labels "sparkweb.run"}} {{.State.Status}}'
)
FOREIGN = 3  # exit code of a script that refused a container which is not ours


@dataclass(frozen=True)
class Labels:
    """Whose container it is."""

    deployment: int
    revision: int
    rank: int
    service: str = ""  # "" is the main one and has no label

    def options(self) -> tuple[str | Expanded, ...]:
        return (
            "--label",
            f"sparkweb.deployment={self.deployment}",
            "--label",
            f"sparkweb.revision={self.revision}",
            "--label",
            f"sparkweb.rank={self.rank}",
            *(("--label", f"sparkweb.service={self.service}") if self.service else ()),
            "--label",
            Expanded("sparkweb.run=", RUN_VARIABLE),
        )


# `docker logs --follow` of Docker 20.10 doubles lines where Docker rotates a log, and loses them where that happens often. So a
# node's own settings are overridden: no rotation before the size at which our copy on the node ends (LOG_NODE_MIB).
LOGGED = ("--log-driver", "json-file", "--log-opt", "max-size=2g", "--log-opt", "max-file=2")


@dataclass(frozen=True)
class Container:
    """What `docker run -d` is told. No --rm and no restart policy: a failed container keeps its log and its exit code,
    and ranks never come up alone after a reboot."""

    name: str
    image: str
    labels: Labels
    command: tuple[str, ...]
    entrypoint: str = ""  # a program in place of the image's own entry point; empty: the image's own
    environment: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()  # variables, passed by name
    mounts: tuple[tuple[str, str], ...] = ()  # (folder on the node, folder inside), read-only
    writable: tuple[tuple[str, str], ...] = ()
    gpus: bool = True
    infiniband: bool = False
    shared_ipc: bool = True  # --ipc host; else a private /dev/shm of 16 GiB

    def run(self) -> Shell:
        """`docker run -d …`; the only expansion in it is the run's id."""
        parts: list[str | Expanded] = ["docker", "run", "-d", "--name", self.name]
        if self.gpus:
            parts += ["--gpus", "all"]
        parts += ["--network", "host"]
        parts += ["--ipc", "host"] if self.shared_ipc else ["--shm-size", "16g"]
        if self.infiniband:
            parts += ["--device", "/dev/infiniband", "--cap-add", "IPC_LOCK"]
        parts += ["--ulimit", "memlock=-1:-1"]
        parts += LOGGED
        for outside, inside in self.mounts:
            parts += ["-v", f"{outside}:{inside}:ro"]
        for outside, inside in self.writable:
            parts += ["-v", f"{outside}:{inside}"]
        for name, value in self.environment:
            parts += ["-e", f"{name}={value}"]
        for variable in self.secrets:
            parts += ["-e", variable]
        if self.entrypoint:
            parts += ["--entrypoint", self.entrypoint]
        parts += self.labels.options()
        return words(*parts, self.image, *self.command)


def start(container: Container) -> Shell:
    """Observe, decide, act: adopt the container if this very run started it, remove our own stale one, refuse a
    foreign one (exit code 3), else run it. Can be repeated at any line."""
    labels = container.labels
    own = f"{labels.deployment}/"
    same = words(Expanded(f"{labels.deployment}/{labels.revision}/", RUN_VARIABLE))
    running = Shell(same.text + Command.of(" running").text)
    adopt = Shell("\n".join((say(f"{container.name} runs already, started by this run").text, leave(0).text)))
    stale = Shell(
        "\n".join(
            (
                say(f"removing {container.name}, left by an earlier run of this deployment").text,
                remove(container.name).text,
            )
        )
    )
    refuse = Shell(
        "\n".join(
            (
                say(
                    f"a container called {container.name} is here and does not belong to this deployment; "
                    f"rename or remove it, or choose another container name",
                    error=True,
                ).text,
                leave(FOREIGN).text,
            )
        )
    )
    return script(
        assign("found", inspect(container.name, IDENTITY)),
        choose(
            "found",
            (Command.of(""), False, Shell(":")),
            (running, False, adopt),
            (Command.of(own), True, stale),
            (None, True, refuse),
        ),
        container.run(),
    )


def inspect(name: str, template: str) -> Command:
    """`docker inspect` of a container. `--type container`, so that an image or volume of that name does not answer."""
    return Command.of("docker", "inspect", "--type", "container", "--format", template, name)


def state(name: str) -> Command:
    """Prints `running 0`: the state and the exit code."""
    return inspect(name, "{{.State.Status}} {{.State.ExitCode}}")


def execute(name: str, *command: str) -> Command:
    return Command.of("docker", "exec", name, *command)


def logs(name: str) -> Command:
    return Command.of("docker", "logs", "--follow", name)


FOLLOW = r"""
since= pause=1
while :; do
  began=$(date +%s)
  {logs} ${{since:+--since "$since"}} {name} 2>&1 || :
  now=$(date +%s)
  if [ $((now - began)) -gt {overlap} ]; then since=$((now - {overlap})) pause=1; fi
  tries=0
  while {assign}; [ -z "$state" ] && ! {version} >/dev/null 2>&1 && [ $tries -lt {patience} ]; do
    tries=$((tries + 1))
    sleep 2
  done
  case "$state" in
  running*|paused*|restarting*) ;;
  '') exit 143 ;;
  *) exit "${{state#* }}" ;;
  esac
  if [ $pause -eq 1 ]; then {say}; fi
  sleep $pause
  pause=$((pause < 60 ? pause * 2 : 60))
done
"""
OVERLAP_S = 10
PATIENCE = 300  # looks for Docker itself, two seconds apart


def follow(name: str) -> Shell:
    """Print the container's log until it ends; the exit code is the container's own (143 when it is gone altogether).

    `docker logs --follow` can end while the container runs (Docker restarted under it, its own reading broke at a rotation). Then
    it is read again from some seconds before: lines may stand twice, none is missing, and a line of ours says so.
    """
    again = f"sparkweb: docker logs ended although {name} runs; read again, lines of the {OVERLAP_S} s before may stand twice"
    text = FOLLOW.format(
        logs=Command.of("docker", "logs", "--follow").text,
        name=Command.of(name).text,
        overlap=OVERLAP_S,
        assign=assign("state", state(name)).text,
        version=Command.of("docker", "version").text,
        patience=PATIENCE,
        say=say(again).text,
    )
    return script(Shell(text.strip("\n")))


def follow_found(name: str) -> Shell:
    """Print the log of a container that is not ours from an hour ago on, for as long as somebody wants it: it may be restarted, or
    made anew by its unit, at any time."""
    text = "\n".join(
        (
            "since=1h",
            "while :; do",
            f"  if docker inspect {Command.of(name).text} >/dev/null 2>&1; then",  # while it is away there is nothing to say
            f'    docker logs --follow --since "$since" {Command.of(name).text} 2>&1 || :',
            "    since=$(date +%s)",
            "  fi",
            "  sleep 5",
            "done",
        )
    )
    return script(Shell(text))


def stop(*names: str, seconds: int = 20) -> Command:
    return Command.of("docker", "stop", "-t", seconds, *names)


def remove(*names: str) -> Command:
    return Command.of("docker", "rm", "-f", *names)


def stop_and_remove(names: Sequence[str]) -> Shell:
    """Each container gracefully stopped, then removed; one that is gone already (its unit removed it) is fine."""
    return script(
        *(
            when(
                quiet(inspect(name, "{{.Id}}")),
                Shell(f"{forgiving(stop(name)).text}\n{remove(name).text} || {_still_there(name).text}"),
                say(f"{name} is gone already"),
            )
            for name in names
        )
    )


def _still_there(name: str) -> Shell:
    """Exit 1 if the container exists: `rm` may have lost a race with the unit that removes it too."""
    return when(quiet(inspect(name, "{{.Id}}")), leave(1))


def stop_and_keep(names: Sequence[str]) -> Shell:
    """Each container stopped and kept from coming back by itself, but not removed: nothing would make it anew."""
    return script(
        *(
            when(
                quiet(inspect(name, "{{.Id}}")),
                Shell("\n".join((remove_restart_policy(name).text, stop(name).text))),
                say(f"{name} is gone already"),
            )
            for name in names
        )
    )


def remove_restart_policy(*names: str) -> Command:
    return Command.of("docker", "update", "--restart=no", *names)


def of_deployment(deployment: int, *, running_only: bool = False, service: str = "", named: bool = False) -> Command:
    """Ids of the containers that carry the deployment's label, and the service's where one is given; `named`: their names."""
    which = (
        [*(() if running_only else ("-a",)), "--format", "{{.Names}}"] if named else ["-q" if running_only else "-aq"]
    )
    made = Command.of("docker", "ps", *which, "--filter", f"label=sparkweb.deployment={deployment}")
    return made.plus("--filter", f"label=sparkweb.service={service}") if service else made


def tear_down(deployment: int, *, service: str = "", kept: Sequence[str] = ()) -> Shell:
    """Everything of one deployment on a node, or of one of its services, but the containers of these names: stopped gracefully,
    then removed by force. Nothing there is fine."""
    running, there = (
        of_deployment(deployment, running_only=flag, service=service, named=bool(kept)) for flag in (True, False)
    )
    but = [Command.of("grep", "-vxF", *(word for name in kept for word in ("-e", name)))] if kept else []
    return script(
        pipe(running, *but, Command.of("xargs", "-r", *stop(seconds=30).words)),
        pipe(there, *but, Command.of("xargs", "-r", *remove().words)),
    )


def names(*, running_only: bool, deployment: int | None = None, service: str = "") -> Command:
    """One container name a line."""
    made = Command.of("docker", "ps", *(() if running_only else ("-a",)))
    if deployment is not None:
        made = made.plus("--filter", f"label=sparkweb.deployment={deployment}")
    if service:
        made = made.plus("--filter", f"label=sparkweb.service={service}")
    return made.plus("--format", "{{.Names}}")


def bring_back(name: str, restart_policy: str | None) -> Iterable[Command]:
    """Start a container that was stopped and kept, with the restart policy that it had."""
    if restart_policy and restart_policy != "no":
        yield Command.of("docker", "update", f"--restart={restart_policy}", name)
    yield Command.of("docker", "start", name)
