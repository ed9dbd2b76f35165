"""All engines by the name that a spec gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from apps.plan.engines import command, llamacpp, ranks, sglang, vllm
from apps.plan.engines.argument import Argument, Variable
from apps.plan.engines.site import Site
from apps.plan.spec import Given, Spec
from apps.plan.step import Setting, Stage

ENGINES: Mapping[str, ranks.Engine] = {
    one.name: one for one in (vllm.VLLM, sglang.SGLANG, llamacpp.LLAMACPP, command.COMMAND)
}
STAGES = {
    "vllm": vllm.stages,
    "sglang": sglang.stages,
    "llamacpp": llamacpp.stages,
    "command": command.stages,
}


def stages(spec: Spec, places: Sequence[Site], given: Given) -> tuple[Stage, ...]:
    """Cluster, Serve, Verify of this spec's engine."""
    return STAGES[spec.engine](spec, places, given)


def settings(spec: Spec, places: Sequence[Site]) -> tuple[Setting, ...]:
    """Every option and variable of the engine with who wanted it: yours, ours, effective, and the reason of each of ours. What
    differs between the nodes stands once for each."""
    engine, master = ENGINES[spec.engine], ranks.master_of(places)
    served = places[:1] if spec.engine == "vllm" and spec.cluster == "ray" else places  # Ray's workers have no options
    rows = [(place.node, _of_argument(one)) for place in served for one in engine.arguments(spec, place.rank, master)]
    rows += [(place.node, _of_variable(one)) for place in places for one in engine.variables(spec, place)]
    rows += [
        (place.node, Setting("variable", secret.variable, "yours", f"the secret “{secret.name}”", yours="by its name"))
        for place in places
        for secret in spec.secrets
    ]
    return _by_node(rows, len(served), len(places))


def _of_argument(one: Argument) -> Setting:
    return Setting(
        kind="argument",
        name=one.flag,
        source={"spec": "yours", "default": "ours"}.get(one.source, one.source),
        effective=" ".join(one.effective),
        yours=" ".join(one.yours or (one.effective if one.source in ("spec", "yours") else ())),
        reason=one.reason,
    )


def _of_variable(one: Variable) -> Setting:
    yours = one.value if one.source == "yours" else ""
    reason = f"instead of ours, {one.ours}: {one.reason}" if one.ours else one.reason
    return Setting("variable", one.name, one.source, one.value, yours=yours, reason=reason)


def _by_node(rows: Sequence[tuple[str, Setting]], ranks_with_options: int, all_ranks: int) -> tuple[Setting, ...]:
    """Equal rows of all nodes are one; others name their nodes. In the order in which they first appear, by name."""
    nodes: dict[Setting, list[str]] = {}
    for node, row in rows:
        nodes.setdefault(row, []).append(node)
    order = {name: place for place, name in enumerate(dict.fromkeys((row.kind, row.name) for _, row in rows))}
    made = []
    for row, where in sorted(nodes.items(), key=lambda item: order[item[0].kind, item[0].name]):
        everywhere = len(where) == (ranks_with_options if row.kind == "argument" else all_ranks)
        made.append(row if everywhere else row.at(where))
    return tuple(made)
