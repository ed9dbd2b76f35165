"""A plan as the API shows it: stages, in each the nodes, of each the commands."""

from __future__ import annotations

from apps.api.schemas import (
    BarOut,
    DifferenceOut,
    FitOut,
    PlannedNode,
    PlannedStage,
    PlannedStep,
    PlanOut,
    PlanProblem,
    SettingOut,
)
from apps.plan.step import Difference, Fit, Plan, Problem, Setting, Stage


def shown(plan: Plan) -> PlanOut:
    return PlanOut(
        digest=plan.digest,
        story=plan.story,
        deployment=plan.deployment,
        revision=plan.revision,
        nodes=list(plan.nodes),
        stages=[_stage(stage) for stage in plan.stages],
        fit=None if plan.fit is None else _fit(plan.fit),
        problems=[_problem(one) for one in plan.problems],
        settings=[_setting(one) for one in plan.settings],
        differences=[_difference(one) for one in plan.differences],
        last_good=plan.last_good,
        on_rank_lost=plan.spec.get("on_rank_lost") if plan.story in ("launch", "relaunch") else None,
        refused=bool(plan.refused),
    )


def _stage(stage: Stage) -> PlannedStage:
    nodes: dict[str, PlannedNode] = {}
    for step in stage.steps:
        node = nodes.setdefault(step.node, PlannedNode(node=step.node, commands=[], steps=[]))
        node.commands.extend(step.commands)
        node.steps.append(
            PlannedStep(
                key=step.key,
                title=step.title,
                kind=step.kind,
                rank=step.rank,
                commands=list(step.commands),
                why=step.why or None,
            )
        )
    return PlannedStage(name=stage.name, phase=stage.phase, nodes=list(nodes.values()))


def _difference(one: Difference) -> DifferenceOut:
    return DifferenceOut(
        name=one.name,
        node=one.node or None,
        service=one.service,
        before=one.before or None,
        after=one.after or None,
        reason=one.reason,
        kind=one.kind,
    )


def fitted(fit: Fit) -> FitOut:
    """A verdict without a plan."""
    return _fit(fit)


def _setting(one: Setting) -> SettingOut:
    return SettingOut(
        kind="variable" if one.kind == "variable" else "argument",
        name=one.name,
        source="yours" if one.source == "yours" else "ours",
        yours=one.yours or None,
        effective=one.effective or None,
        reason=one.reason or None,
        nodes=list(one.nodes),
    )


def _fit(fit: Fit) -> FitOut:
    return FitOut(
        verdict=fit.verdict,
        sentence=fit.sentence,
        kv_tokens=fit.kv_tokens,
        sequences=fit.sequences,
        length=fit.length,
        largest=fit.largest,
        remarks=list(fit.remarks),
        bars=[
            BarOut(
                node=bar.node,
                total_bytes=bar.total_bytes,
                segments=dict(bar.segments),
                over_bytes=bar.over_bytes,
                gpu=bar.gpu,
                deployments=dict(bar.deployments),
            )
            for bar in fit.bars
        ],
    )


def _problem(problem: Problem) -> PlanProblem:
    return PlanProblem(
        name=problem.name,
        severity=problem.severity,
        title=problem.title,
        node=problem.node or None,
        meaning=problem.meaning or None,
        remedy=problem.remedy or None,
        evidence=problem.evidence or None,
        clear=[dict(item) for item in problem.clear],
        change=problem.change,
        deployment=problem.deployment,
    )
