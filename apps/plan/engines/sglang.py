"""SGLang: on one node or over several (`--dist-init-addr`); in Docker or as a plain process of a virtual environment."""

from __future__ import annotations

from collections.abc import Sequence

from apps.plan.engines import network, ranks
from apps.plan.engines.argument import Argument, Variable, merged, number, of_fields, with_own
from apps.plan.engines.site import Site, cluster_port
from apps.plan.spec import Given, Spec
from apps.plan.step import Stage
from apps.shell import Command


def arguments(spec: Spec, *, rank: int = 0, master: str = "") -> tuple[Argument, ...]:
    """All options of the server for a rank, in order. `master`: the head's fabric address, where the ranks meet."""
    return merged(spec, (*_of_spec(spec), *_of_cluster(spec, rank, master), *_defaults()), refused=_refused)


def _of_spec(spec: Spec) -> tuple[Argument, ...]:
    return tuple(
        of_fields(
            [
                ("--model-path", spec.model_path or spec.model, ""),
                ("--served-model-name", spec.model_name, "the readiness check asks for exactly this name"),
                ("--host", spec.api_host, ""),
                ("--port", str(spec.port), ""),
                ("--tp-size", str(spec.tensor_parallel), ""),
                ("--mem-fraction-static", number(spec.gpu_memory_utilization), ""),
                ("--context-length", number(spec.max_model_len), ""),
                ("--kv-cache-dtype", spec.kv_cache_dtype or None, ""),
                ("--attention-backend", spec.attention_backend or None, ""),
                ("--reasoning-parser", spec.reasoning_parser or None, ""),
                ("--tool-call-parser", spec.tool_call_parser or None, ""),
            ]
        )
    )


def _of_cluster(spec: Spec, rank: int, master: str) -> tuple[Argument, ...]:
    if len(spec.nodes) < 2:
        return ()
    pairs = (
        ("--dist-init-addr", f"{master}:{cluster_port(spec)}"),
        ("--nnodes", str(len(spec.nodes))),
        ("--node-rank", str(rank)),
    )
    why = "the ranks meet at the head's fabric address"
    return tuple(Argument(flag, (flag, value), "ours", why) for flag, value in pairs)


def _defaults() -> tuple[Argument, ...]:
    flag = "--enable-metrics"
    return (Argument(flag, (flag,), "default", "without it /metrics has nothing to say"),)


def _refused(spec: Spec, flag: str) -> str:
    if len(spec.nodes) < 2 and flag in ("--dist-init-addr", "--nccl-init-addr", "--nnodes", "--node-rank"):
        return "belongs to several nodes; this deployment has one"
    return ""


def variables(spec: Spec, site: Site) -> tuple[Variable, ...]:
    """Of several nodes each must say its own address: SGLang opens a message queue beside NCCL, and the address that it finds
    for that by itself is the one towards the internet. The ranks then wait for ever, after NCCL is done
    (MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks#3 and #9)."""
    made: list[Variable] = []
    if site.fabric is not None:
        why = "the fabric: SGLang's own guess is the address towards the internet, and the ranks would wait for ever"
        made.append(Variable("SGLANG_HOST_IP", site.fabric.address, reason=why))
        made += network.variables(site.fabric)
    if spec.model_path:
        made.append(Variable("HF_HUB_OFFLINE", "1", reason="the files are on the node; a node may have no internet"))
    return with_own(spec, made)


def command(spec: Spec, place: Site, master: str) -> Command:
    """`PYTHON -m sglang.launch_server …`, or `sglang serve …` where the program is that one."""
    program = spec.executable or "python3"
    start = ("serve",) if program.rpartition("/")[2] == "sglang" else ("-m", "sglang.launch_server")
    words = [word for one in arguments(spec, rank=place.rank, master=master) for word in one.effective]
    return Command.of(program, *start, *words)


SGLANG = ranks.Engine(
    name="sglang",
    title="SGLang",
    follows="sglang",
    command=command,
    arguments=lambda spec, rank, master: arguments(spec, rank=rank, master=master),
    variables=variables,
    health=True,
)


def stages(spec: Spec, places: Sequence[Site], given: Given) -> tuple[Stage, ...]:
    return ranks.stages(SGLANG, spec, places, given)
