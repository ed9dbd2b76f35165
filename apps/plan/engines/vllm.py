"""vLLM: over Ray, native multi-node, or on one node; in Docker or as a plain process."""

from __future__ import annotations

import json
from collections.abc import Sequence

from apps.plan import steps
from apps.plan.commands import docker, ray
from apps.plan.engines import network, ranks
from apps.plan.engines.argument import Argument, Variable, merged, number, of_fields, with_own
from apps.plan.engines.site import Site, cluster_port
from apps.plan.spec import Given, Spec
from apps.plan.step import Stage, Step
from apps.shell import Command, becoming, forgiving, pipe, script

READY_TIMEOUT_S = 3600  # vLLM's own patience with its workers; the default of 600 s is shorter than a big model's load


def arguments(spec: Spec, *, rank: int = 0, master: str = "") -> tuple[Argument, ...]:
    """All options of `vllm serve` for a rank, in order. `master`: the head's fabric address (native multi-node
    only)."""
    return merged(spec, (*_of_spec(spec), *_of_cluster(spec, rank, master)), refused=_refused)


def _of_spec(spec: Spec) -> tuple[Argument, ...]:
    """Options that stand in fields of the spec."""
    wanted: list[tuple[str, str | None, str]] = [
        ("--served-model-name", spec.model_name, "the readiness check asks for exactly this name"),
        ("--host", spec.api_host, ""),
        ("--port", str(spec.port), ""),
        ("--tensor-parallel-size", str(spec.tensor_parallel), ""),
        ("--gpu-memory-utilization", number(spec.gpu_memory_utilization), ""),
        ("--max-model-len", number(spec.max_model_len), ""),
        ("--kv-cache-dtype", spec.kv_cache_dtype or None, ""),
        ("--attention-backend", spec.attention_backend or None, ""),
        ("--reasoning-parser", spec.reasoning_parser or None, ""),
        ("--tool-call-parser", spec.tool_call_parser or None, ""),
    ]
    made = of_fields(wanted)
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
            ("--master-port", str(cluster_port(spec))),
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


def serve_words(spec: Spec, *, program: str = "vllm", rank: int = 0, master: str = "") -> Command:
    """`vllm serve MODEL …`."""
    words = [word for argument in arguments(spec, rank=rank, master=master) for word in argument.effective]
    return Command.of(program, "serve", spec.model_path or spec.model, *words)


def variables(spec: Spec, site: Site) -> tuple[Variable, ...]:
    """What the engine's processes find in their environment on one node, with the reason of each."""
    made: list[Variable] = []
    if site.fabric is not None:
        made.append(
            Variable("VLLM_HOST_IP", site.fabric.address, reason="the fabric, or Ray waits for another address")
        )
        made += network.variables(site.fabric)
    if spec.cluster == "ray":
        normal = "on unified memory 95 % in use is normal, and the monitor would kill workers"
        made.append(Variable("RAY_memory_monitor_refresh_ms", "0", reason=normal))
    patience = "the default of 600 s is shorter than a big model's load"
    made.append(Variable("VLLM_ENGINE_READY_TIMEOUT_S", str(READY_TIMEOUT_S), reason=patience))
    if spec.model_path:
        made.append(Variable("HF_HUB_OFFLINE", "1", reason="the files are on the node; a node may have no internet"))
    return with_own(spec, made)


def environment(spec: Spec, site: Site) -> tuple[tuple[str, str], ...]:
    """The same as pairs; a person's own values win."""
    return tuple((one.name, one.value) for one in variables(spec, site))


def container(spec: Spec, site: Site, given: Given, command: Command) -> docker.Container:
    return ranks.container(VLLM, spec, site, given, command)


def stages(spec: Spec, places: Sequence[Site], given: Given) -> tuple[Stage, ...]:
    """Cluster, Serve, Verify: how this spec is started on these places (rank order, the head first)."""
    if spec.cluster == "ray" and spec.runtime == "docker":
        return _ray(spec, places, given)
    return ranks.stages(VLLM, spec, places, given)


def _command(spec: Spec, place: Site, master: str) -> Command:
    return serve_words(spec, program=spec.executable or "vllm", rank=place.rank, master=master)


def _ray(spec: Spec, places: Sequence[Site], given: Given) -> tuple[Stage, ...]:
    head, *workers = places
    head_address = head.fabric.address if head.fabric else "127.0.0.1"
    port = cluster_port(spec) or ray.PORT
    started = ray.head(head_address, port=port, gpus=head.gpus)
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
                        ray.worker(
                            place.fabric.address if place.fabric else "", head_address, port=port, gpus=place.gpus
                        ),
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
    serve = docker.execute(head.container, *_command(spec, head, "").words)
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
    made.append(Stage("Verify", "verifying", steps.proofs_of(spec, head.node)))
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


VLLM = ranks.Engine(
    name="vllm",
    title="vLLM",
    follows="vllm",
    command=_command,
    arguments=lambda spec, rank, master: arguments(spec, rank=rank, master=master),
    variables=variables,
)
