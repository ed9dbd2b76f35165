"""Anything with an OpenAI-compatible server: the deployment's further arguments are the whole command. One node."""

from __future__ import annotations

from collections.abc import Sequence

from apps.plan import steps
from apps.plan.commands import docker
from apps.plan.engines import vllm
from apps.plan.engines.site import Site
from apps.plan.spec import Given, Spec
from apps.plan.step import Stage
from apps.shell import Command


def stages(spec: Spec, places: Sequence[Site], given: Given) -> tuple[Stage, ...]:
    """Start the command, wait until its API names the model, prove it."""
    head = places[0]
    tail = (Stage("Verify", "verifying", (steps.smoke(spec, head.node),)),)
    if spec.runtime == "process":
        words = Command.of(*spec.arguments)
        start = steps.serve(
            head.node,
            vllm.process(spec.environment, words),
            shown=(words.text,),
            secrets=spec.secrets,
            rank=0,
            follows="",
        )
        return (Stage("Serve", "loading", (start, steps.ready(spec, head.node))), *tail)
    made = docker.Container(
        name=head.container,
        image=spec.image,
        labels=docker.Labels(given.deployment, given.revision, 0, spec.service),
        command=spec.arguments,
        environment=spec.environment,
        secrets=tuple(secret.variable for secret in spec.secrets),
        mounts=((vllm.mount_of(spec.model_path),) * 2,) if spec.model_path else (),
        gpus=head.has_gpu,
        shared_ipc=head.shared_ipc,
    )
    return (
        Stage(
            "Container",
            "cluster",
            (
                steps.job(
                    f"cluster.rank0.{head.node}",
                    head.node,
                    f"Start {head.container}",
                    docker.start(made),
                    shown=(made.run().text,),
                    secrets=spec.secrets,
                ),
                steps.serve(
                    head.node,
                    docker.follow(head.container),
                    shown=(docker.logs(head.container).text,),
                    secrets=(),
                    rank=0,
                    title="Follow its log",
                    follows="",
                ),
                steps.container_running(f"cluster.rank0-up.{head.node}", head.node, head.container),
            ),
        ),
        Stage("Serve", "loading", (steps.ready(spec, head.node),)),
        *tail,
    )
