"""vLLM: over Ray, native multi-node, or on one node; in Docker or as a plain process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from apps.plan import steps
from apps.plan.commands import docker, ray
from apps.plan.engines.site import Site
from apps.plan.options import canonical, group
from apps.plan.spec import Given, Spec
from apps.plan.step import Stage, Step
from apps.shell import Command, Shell, becoming, forgiving, pipe, script

READY_TIMEOUT_S = 3600  # vLLM's own patience with its workers; the default of 600 s is shorter than a big model's load
CACHE_INSIDE = "/root/.cache/huggingface"


@dataclass(frozen=True)
class Argument:
    """One option of the engine's command line and who wanted it.

    `effective`: the words that are passed, empty when it is dropped. `source`: spec (a field of the deployment), ours
    (needed for the way it is started), yours (a further argument). `yours`: what was asked for where it differs.
    `reason`: why."""

    flag: str
    effective: tuple[str, ...]
    source: str
    reason: str = ""
    yours: tuple[str, ...] = ()


def arguments(spec: Spec, *, rank: int = 0, master: str = "") -> tuple[Argument, ...]:
    """All options of `vllm serve` for a rank, in order. `master`: the head's fabric address (native multi-node
    only)."""
    fixed = (*_of_spec(spec), *_of_cluster(spec, rank, master))
    groups = group(spec.arguments)
    taken = {canonical(flag): words for flag, words in groups}
    made = []
    for argument in fixed:
        yours = taken.get(argument.flag)
        if yours is not None and yours != argument.effective:
            reason = argument.reason or "the deployment's own field wins over a further argument"
            argument = Argument(argument.flag, argument.effective, argument.source, reason, yours)
        made.append(argument)
    held = {argument.flag for argument in fixed}
    for flag, words in groups:
        option = canonical(flag)
        if option in held:
            continue
        refused = _refused(spec, option)
        made.append(Argument(option, () if refused else words, "yours", refused, words if refused else ()))
    return tuple(made)


def _of_spec(spec: Spec) -> tuple[Argument, ...]:
    """Options that stand in fields of the spec."""
    wanted: list[tuple[str, str | None, str]] = [
        ("--served-model-name", spec.model_name, "the readiness check asks for exactly this name"),
        ("--host", spec.api_host, ""),
        ("--port", str(spec.port), ""),
        ("--tensor-parallel-size", str(spec.tensor_parallel), ""),
        ("--gpu-memory-utilization", _number(spec.gpu_memory_utilization), ""),
        ("--max-model-len", _number(spec.max_model_len), ""),
        ("--kv-cache-dtype", spec.kv_cache_dtype or None, ""),
        ("--attention-backend", spec.attention_backend or None, ""),
        ("--reasoning-parser", spec.reasoning_parser or None, ""),
        ("--tool-call-parser", spec.tool_call_parser or None, ""),
    ]
    made = [Argument(flag, (flag, value), "spec", reason) for flag, value, reason in wanted if value is not None]
    if spec.tool_call_parser:
        flag = "--enable-auto-tool-choice"
        made.insert(len(made) - 1, Argument(flag, (flag,), "ours", "a tool call parser does nothing without it"))
    return tuple(made)


def _of_cluster(spec: Spec, rank: int, master: str) -> tuple[Argument, ...]:
    """Options that follow from the way the ranks find each other."""
    if spec.cluster == "ray":
        words = ("--distributed-executor-backend", "ray")
        return (Argument(words[0], words, "ours", "the ranks are Ray workers"),)
    if spec.cluster == "native" and len(spec.nodes) > 1:
        pairs = (
            ("--nnodes", str(len(spec.nodes))),
            ("--node-rank", str(rank)),
            ("--master-addr", master),
            ("--master-port", str(ray.RENDEZVOUS_PORT)),
        )
        made = [
            Argument(flag, (flag, value), "ours", "the ranks meet at the head's fabric address")
            for flag, value in pairs
        ]
        if rank:
            made.append(Argument("--headless", ("--headless",), "ours", "only the head has an API"))
        return tuple(made)
    return ()


def _refused(spec: Spec, flag: str) -> str:
    """Why a further argument can't be passed on in this mode; empty when it can."""
    if spec.cluster == "ray" and flag in ("--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"):
        return "belongs to native multi-node; this deployment uses Ray, and one run is one mode"
    if spec.cluster == "native" and flag == "--distributed-executor-backend":
        return "native multi-node implies its own executor; Ray would wait for a cluster that nobody started"
    if flag == "--headless":
        return "the head needs its API"
    return ""


def _number(value: float | int | None) -> str | None:
    return None if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def serve_words(spec: Spec, *, program: str = "vllm", rank: int = 0, master: str = "") -> Command:
    """`vllm serve MODEL …`."""
    words = [word for argument in arguments(spec, rank=rank, master=master) for word in argument.effective]
    return Command.of(program, "serve", spec.model_path or spec.model, *words)


def environment(spec: Spec, site: Site) -> tuple[tuple[str, str], ...]:
    """What the engine's processes find in their environment on one node; a person's own values win."""
    made: dict[str, str] = {}
    if site.fabric is not None:
        made["VLLM_HOST_IP"] = site.fabric.address
        made["NCCL_SOCKET_IFNAME"] = site.fabric.nccl_interface
        made["GLOO_SOCKET_IFNAME"] = site.fabric.interface
        made["TP_SOCKET_IFNAME"] = site.fabric.interface
        if site.fabric.hcas:
            made["NCCL_IB_HCA"] = ",".join(site.fabric.hcas)
        made["NCCL_DEBUG"] = "INFO"  # the only proof of the path: a misspelt HCA falls back to TCP without a word
        made["NCCL_DEBUG_SUBSYS"] = "INIT,NET"
    if spec.cluster == "ray":
        made["RAY_memory_monitor_refresh_ms"] = (
            "0"  # on unified memory 95 % in use is normal, and the monitor would kill workers
        )
    made["VLLM_ENGINE_READY_TIMEOUT_S"] = str(READY_TIMEOUT_S)
    if spec.model_path:
        made["HF_HUB_OFFLINE"] = "1"
    made.update(dict(spec.environment))
    return tuple(made.items())


def mount_of(model_path: str) -> str:
    """The folder to show to a container. A hub snapshot is a farm of links into blobs beside it, so all of `hub` is
    needed."""
    before, mark, _ = model_path.partition("/hub/models--")
    return f"{before}/hub" if mark else model_path


def container(spec: Spec, site: Site, given: Given, command: Command) -> docker.Container:
    mounts = ((mount_of(spec.model_path),) * 2,) if spec.model_path else ()
    writable = ((f"{site.home}/.cache/huggingface", CACHE_INSIDE),) if not spec.model_path and site.home else ()
    return docker.Container(
        name=site.container,
        image=spec.image,
        labels=docker.Labels(given.deployment, given.revision, site.rank, spec.service),
        command=command.words,
        environment=environment(spec, site),
        secrets=tuple(secret.variable for secret in spec.secrets),
        mounts=mounts,
        writable=writable,
        gpus=site.has_gpu,
        infiniband=bool(site.fabric and site.fabric.hcas),
        shared_ipc=site.shared_ipc,
    )


def stages(spec: Spec, places: Sequence[Site], given: Given) -> tuple[Stage, ...]:
    """Cluster, Serve, Verify: how this spec is started on these places (rank order, the head first)."""
    if spec.runtime == "process":
        return _process(spec, places)
    if spec.cluster == "ray":
        return _ray(spec, places, given)
    return _native(spec, places, given)


def _ray(spec: Spec, places: Sequence[Site], given: Given) -> tuple[Stage, ...]:
    head, *workers = places
    head_address = head.fabric.address if head.fabric else "127.0.0.1"
    started = ray.head(head_address, gpus=head.gpus)
    made = [
        Stage("Ray head", "cluster", tuple(_rank_steps(spec, head, given, started, role="ray-head", follows="ray")))
    ]
    if workers:
        made.append(
            Stage(
                "Ray workers",
                "cluster",
                tuple(
                    step
                    for place in workers
                    for step in _rank_steps(
                        spec,
                        place,
                        given,
                        ray.worker(place.fabric.address if place.fabric else "", head_address, gpus=place.gpus),
                        role="ray-worker",
                        follows="vllm",
                        rank=place.rank,
                    )
                ),
            )
        )
    made.append(
        Stage(
            "Ray cluster",
            "cluster",
            (
                _ray_nodes(
                    head,
                    [place.fabric.address if place.fabric else head_address for place in places],
                    sum(place.gpus for place in places),  # what the nodes were told to bring, whoever uses them
                ),
            ),
        )
    )
    serve = docker.execute(head.container, *serve_words(spec).words)
    made.append(
        Stage(
            "Serve",
            "loading",
            (
                *_kept_per_node(spec, places),
                steps.serve(head.node, becoming(serve), shown=(serve.text,), secrets=(), rank=0),
                steps.ready(spec, head.node),
            ),
        )
    )
    made.append(Stage("Verify", "verifying", (steps.smoke(spec, head.node),)))
    return tuple(made)


def _rank_steps(
    spec: Spec,
    place: Site,
    given: Given,
    command: Command,
    *,
    role: str,
    follows: str,
    rank: int | None = None,
) -> tuple[Step, ...]:
    """Start one rank's container, follow its log, wait until it runs."""
    made = container(spec, place, given, command)
    return (
        steps.job(
            f"cluster.{role}.{place.node}",
            place.node,
            f"Start {place.container}",
            docker.start(made),
            shown=(made.run().text,),
            secrets=spec.secrets,
        ),
        steps.follow(f"cluster.{role}-log.{place.node}", place.node, place.container, follows=follows, rank=rank),
        steps.container_running(f"cluster.{role}-up.{place.node}", place.node, place.container),
    )


def _ray_nodes(head: Site, addresses: Sequence[str], gpus: int) -> Step:
    status = docker.execute(head.container, *ray.status().words)
    nodes = docker.execute(head.container, *ray.nodes().words)
    return Step(
        key=f"cluster.ray-nodes.{head.node}",
        node=head.node,
        title=f"Wait until Ray shows {len(addresses)} nodes and 0.0/{gpus}.0 GPU",
        kind="wait",
        script=script(status, Command.of("echo", ray.ADDRESSES), forgiving(nodes)).text,
        commands=(status.text, nodes.text),
        why=f"goes on when Ray shows exactly {', '.join(addresses)} and 0.0/{gpus}.0 GPU in use",
        gate={"name": "ray_nodes", "addresses": list(addresses), "gpus": float(gpus)},
        every_s=3.0,
        within_s=120.0,
    )


def _kept_per_node(spec: Spec, places: Sequence[Site]) -> tuple[Step, ...]:
    """Ray gives the head's NCCL_… and VLLM_… to all workers. Where the nodes' own values differ, vLLM is told to leave
    these alone."""
    values = [dict(environment(spec, place)) for place in places]
    differ = sorted(
        name
        for name in set().union(*values)
        if name.startswith(("NCCL_", "GLOO_", "TP_", "UCX_")) and len({value.get(name) for value in values}) > 1
    )
    if not differ:
        return ()
    head = places[0]
    path = "/root/.config/vllm/ray_non_carry_over_env_vars.json"
    write = Command.of(
        "docker",
        "exec",
        "-i",
        head.container,
        "sh",
        "-c",
        f"mkdir -p /root/.config/vllm && cat > {path}",
    )
    return (
        steps.job(
            f"serve.kept-per-node.{head.node}",
            head.node,
            f"Keep {', '.join(differ)} per node",
            script(pipe(Command.of("printf", "%s\n", json.dumps(differ)), write)),
            why="the nodes' interfaces differ, and Ray would give the head's names to all of them",
        ),
    )


def _native(spec: Spec, places: Sequence[Site], given: Given) -> tuple[Stage, ...]:
    """Every container's main process is the engine; workers first, because the head waits for them only so long."""
    head, *workers = places
    master = head.fabric.address if head.fabric else ""

    def started(place: Site) -> tuple[Step, ...]:
        made = container(spec, place, given, serve_words(spec, rank=place.rank, master=master))
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
            ),
            steps.container_running(f"cluster.rank{place.rank}-up.{place.node}", place.node, place.container),
        )

    made = []
    if workers:
        made.append(Stage("Workers", "cluster", tuple(step for place in workers for step in started(place))))
    made.append(Stage("Head" if workers else "Engine", "cluster", started(head)))
    made.append(Stage("Serve", "loading", (steps.ready(spec, head.node),)))
    made.append(Stage("Verify", "verifying", (steps.smoke(spec, head.node),)))
    return tuple(made)


def _process(spec: Spec, places: Sequence[Site]) -> tuple[Stage, ...]:
    """Plain processes, one per node, under the executor's own detached jobs."""
    head, *workers = places
    master = head.fabric.address if head.fabric else ""

    def started(place: Site) -> Step:
        words = serve_words(spec, program=spec.executable, rank=place.rank, master=master)
        return steps.serve(
            place.node,
            process(environment(spec, place), words),
            shown=(words.text,),
            secrets=spec.secrets,
            rank=place.rank,
        )

    made = []
    if workers:
        made.append(Stage("Workers", "cluster", tuple(started(place) for place in workers)))
    made.append(Stage("Serve", "loading", (started(head), steps.ready(spec, head.node))))
    made.append(Stage("Verify", "verifying", (steps.smoke(spec, head.node),)))
    return tuple(made)


def process(values: Sequence[tuple[str, str]], words: Command) -> Shell:
    """`exec env A=b … program …`: the job's process is the engine itself."""
    pairs = tuple(f"{name}={value}" for name, value in values)
    return becoming(Command.of("env", *pairs, *words.words) if pairs else words)
