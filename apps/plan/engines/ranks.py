"""One main process a node: the engine itself as PID 1 of its container, or as a detached job. What the engines that start
like that have in common; an `Engine` says the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from posixpath import dirname, isabs

from apps.plan import steps
from apps.plan.commands import docker
from apps.plan.engines.argument import Argument, Variable
from apps.plan.engines.site import Site, cluster_port
from apps.plan.spec import Given, Spec
from apps.plan.step import Stage, Step
from apps.shell import Command, Expanded, Shell, becoming, words

CACHE_INSIDE = "/root/.cache/huggingface"


@dataclass(frozen=True)
class Engine:
    """One kind of server, as it is started and told apart.

    `command`: the words of one rank (spec, place, head's fabric address). `arguments`: the same, option by option (spec,
    rank, master). `health`: `/health` says when it is ready, because `/v1/models` answers before."""

    name: str
    title: str
    follows: str  # its reader in diagnosis; "" when its output is nobody's known format
    command: Callable[[Spec, Site, str], Command]
    arguments: Callable[[Spec, int, str], tuple[Argument, ...]]
    variables: Callable[[Spec, Site], tuple[Variable, ...]]
    health: bool = False


def master_of(places: Sequence[Site]) -> str:
    """The head's fabric address; empty on one node."""
    return places[0].fabric.address if places and places[0].fabric else ""


def mount_of(model_path: str) -> str:
    """The folder to show to a container. A hub snapshot is a farm of links into blobs beside it, so all of `hub` is
    needed; the parts of a split GGUF file lie beside each other."""
    before, mark, _ = model_path.partition("/hub/models--")
    if mark:
        return f"{before}/hub"
    return dirname(model_path) if model_path.lower().endswith(".gguf") else model_path


def container(engine: Engine, spec: Spec, site: Site, given: Given, command: Command) -> docker.Container:
    """`command` begins with the program. Where the image's own entry point is an engine, the program takes its place;
    a command of options alone is for the image's own entry point."""
    mounts = ((mount_of(spec.model_path),) * 2,) if spec.model_path else ()
    writable = ((f"{site.home}/.cache/huggingface", CACHE_INSIDE),) if not spec.model_path and site.home else ()
    program, *rest = command.words
    replaced = site.entrypoint_is_engine and not program.startswith("-")
    return docker.Container(
        name=site.container,
        image=spec.image,
        labels=docker.Labels(given.deployment, given.revision, site.rank, spec.service),
        entrypoint=program if replaced else "",
        command=tuple(rest) if replaced else command.words,
        environment=tuple((one.name, one.value) for one in engine.variables(spec, site)),
        secrets=tuple(secret.variable for secret in spec.secrets),
        mounts=mounts,
        writable=writable,
        gpus=site.has_gpu,
        infiniband=bool(site.fabric and site.fabric.hcas),
        shared_ipc=site.shared_ipc,
    )


def process(spec: Spec, values: Sequence[tuple[str, str]], command: Command) -> Shell:
    """`exec env A=b … program …`: the job's process is the engine itself. A program in a `bin` folder finds its own
    environment's tools (ninja, for kernels that are built at the start) before the system's."""
    pairs: list[str | Expanded] = [f"{name}={value}" for name, value in values]
    folder = dirname(command.words[0])
    if isabs(folder) and folder.endswith("/bin") and _plain(folder) and "PATH" not in dict(values):
        pairs.insert(0, Expanded(f"PATH={folder}:", "PATH"))
    return becoming(words("env", *pairs, *command.words) if pairs else command)


def _plain(folder: str) -> bool:
    """Whether double quotes carry it literally."""
    return not any(char in folder for char in '"$`\\\n\0')


def stages(engine: Engine, spec: Spec, places: Sequence[Site], given: Given) -> tuple[Stage, ...]:
    """Workers, head, ready, proven: the workers first, because the head waits for them only so long."""
    started = _process if spec.runtime == "process" else _container
    head, *workers = places
    made = []
    if workers:
        steps_of_workers = tuple(step for place in workers for step in started(engine, spec, places, place, given))
        made.append(Stage("Workers", "cluster", steps_of_workers))
    begun = started(engine, spec, places, head, given)
    if spec.runtime == "process":
        made.append(Stage("Serve", "loading", (*begun, *ready(engine, spec, head.node))))
    else:
        made.append(Stage("Head" if workers else "Engine", "cluster", (*begun, *_meeting(spec, places))))
        made.append(Stage("Serve", "loading", ready(engine, spec, head.node)))
    made.append(Stage("Verify", "verifying", steps.proofs_of(spec, head.node)))
    return tuple(made)


def _container(engine: Engine, spec: Spec, places: Sequence[Site], place: Site, given: Given) -> tuple[Step, ...]:
    made = container(engine, spec, place, given, engine.command(spec, place, master_of(places)))
    return (
        steps.job(
            f"cluster.rank{place.rank}.{place.node}",
            place.node,
            f"Start {place.container}",
            docker.start(made),
            shown=(made.run().text,),
            secrets=spec.secrets,
        ),
        steps.serve(
            place.node,
            docker.follow(place.container),
            shown=(docker.logs(place.container).text,),
            secrets=(),
            rank=place.rank,
            title=f"Follow rank {place.rank}",
            follows=engine.follows,
            container=place.container,
        ),
        steps.container_running(f"cluster.rank{place.rank}-up.{place.node}", place.node, place.container),
    )


def _process(engine: Engine, spec: Spec, places: Sequence[Site], place: Site, given: Given) -> tuple[Step, ...]:
    """A detached job on the node, in a systemd scope of its own where the login's systemd lives on without it."""
    command = engine.command(spec, place, master_of(places))
    values = tuple((one.name, one.value) for one in engine.variables(spec, place))
    return (
        steps.serve(
            place.node,
            process(spec, values, command),
            shown=(command.text,),
            secrets=spec.secrets,
            rank=place.rank,
            follows=engine.follows,
        ),
    )


def _meeting(spec: Spec, places: Sequence[Site]) -> tuple[Step, ...]:
    """Of several ranks: the head listens where the others look for it. Nobody connects, because a stranger at that port would
    count as a rank."""
    port = cluster_port(spec)
    if len(places) < 2 or port is None:
        return ()
    return (steps.port_listening(f"cluster.meeting.{places[0].node}", places[0].node, port, places[0].container),)


def ready(engine: Engine, spec: Spec, head: str) -> tuple[Step, ...]:
    """`/health` where the engine names its model before it can answer, then the name."""
    asked = (steps.healthy(spec, head, engine.title),) if engine.health else ()
    return (*asked, steps.ready(spec, head))
