"""llama.cpp's server: one node, one GGUF file (the first part of a split one); in Docker or as a plain process."""

from __future__ import annotations

from collections.abc import Sequence

from apps.plan.engines import ranks
from apps.plan.engines.argument import Argument, Variable, merged, number, of_fields, with_own
from apps.plan.engines.site import Site
from apps.plan.spec import Given, Spec
from apps.plan.step import Stage
from apps.shell import Command

ALL_LAYERS = "999"  # more than any model has


def arguments(spec: Spec, *, rank: int = 0, master: str = "") -> tuple[Argument, ...]:
    """All options of `llama-server`, in order."""
    return merged(spec, (*_of_spec(spec), *_defaults(spec)))


def _of_spec(spec: Spec) -> tuple[Argument, ...]:
    source = ("--model", spec.model_path) if spec.model_path else ("--hf-repo", spec.model)
    kind = spec.kv_cache_dtype or None
    return tuple(
        of_fields(
            [
                (*source, ""),
                ("--alias", spec.model_name, "the readiness check asks for exactly this name"),
                ("--host", spec.api_host, ""),
                ("--port", str(spec.port), ""),
                ("--ctx-size", number(spec.max_model_len), ""),
                ("--cache-type-k", kind, ""),
                ("--cache-type-v", kind, ""),
            ]
        )
    )


def _defaults(spec: Spec) -> tuple[Argument, ...]:
    made = [
        Argument(
            "--n-gpu-layers", ("--n-gpu-layers", ALL_LAYERS), "default", "all layers on the GPU, or none would be"
        ),
        Argument("--jinja", ("--jinja",), "default", "chat and tools by the template in the file"),
        Argument("--metrics", ("--metrics",), "default", "without it /metrics has nothing to say"),
    ]
    if spec.reasoning_parser:
        words = ("--reasoning-format", spec.reasoning_parser)
        made.append(Argument(words[0], words, "spec"))
    return tuple(made)


def variables(spec: Spec, site: Site) -> tuple[Variable, ...]:
    """llama.cpp spreads a model over every GPU that it sees, so it is shown as many as the deployment asks for."""
    made = []
    if 0 < site.gpus < site.gpus_there:
        seen = ",".join(str(number) for number in range(site.gpus))
        why = f"{site.gpus} of the {site.gpus_there} GPUs: it would spread over all that it sees"
        made.append(Variable("CUDA_VISIBLE_DEVICES", seen, reason=why))
    return with_own(spec, made)


def command(spec: Spec, place: Site, master: str) -> Command:
    """`llama-server …`. In Docker without a program of its own: options alone, for the image's entry point, because the
    server lies outside of PATH in llama.cpp's own images (/app/llama-server)."""
    words = [word for one in arguments(spec) for word in one.effective]
    if spec.runtime == "docker" and not spec.executable:
        return Command.of(*words)
    return Command.of(spec.executable or "llama-server", *words)


LLAMACPP = ranks.Engine(
    name="llamacpp",
    title="llama.cpp",
    follows="llamacpp",
    command=command,
    arguments=lambda spec, rank, master: arguments(spec),
    variables=variables,
    health=True,
)


def stages(spec: Spec, places: Sequence[Site], given: Given) -> tuple[Stage, ...]:
    return ranks.stages(LLAMACPP, spec, places, given)
