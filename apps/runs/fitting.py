"""Will it fit, asked of what is no deployment yet. Reads the newest sheets; changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from apps.deployments import learning
from apps.deployments.models import Deployment
from apps.deployments.queries import others
from apps.deployments.services import spec_from
from apps.diagnosis.refusal import Refused
from apps.plan.fit_together import fit_all
from apps.plan.kvcache import is_size, text_config
from apps.plan.spec import Given
from apps.plan.step import Fit
from apps.runs.services import sheets_of

LARGEST_CONFIG = 1 << 20  # bytes of JSON
MOST_LAYERS = 10_000
ASKED = "will-it-fit"  # stands for the name of a deployment that is not there yet
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def will_it_fit(
    body: Mapping[str, Any],
    nodes: Sequence[str],
    *,
    deployment: Deployment | None = None,
    config: Any = None,
    weights_bytes: int | None = None,
) -> Fit:
    """The verdict for these settings on these nodes. `deployment`: of which this would be a new revision. Raises Refused
    for a field or a config that can't be read."""
    spec = spec_from(name=deployment.name if deployment else ASKED, body=body, nodes=nodes)
    given = Given(
        deployment=deployment.pk if deployment else 0,
        others=others(deployment, spec.nodes),
        config=checked_config(config),
        weights_bytes=checked_size(weights_bytes),
        measured=learning.measured(spec),
    )
    return fit_all(spec, sheets_of(spec.nodes), given)


def checked_config(value: Any) -> dict[str, Any] | None:
    """A config.json that a person gave, as text or as an object; None for nothing. Raises Refused."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        if len(value.encode("utf-8", "replace")) > LARGEST_CONFIG:
            raise _too_large()
        try:
            value = json.loads(value)
        except ValueError as problem:
            place = f" at line {problem.lineno}" if isinstance(problem, json.JSONDecodeError) else ""
            raise _unreadable(f"It is no JSON{place}.") from None
        except RecursionError:
            raise _unreadable("It is nested too deeply.") from None
    elif len(json.dumps(value)) > LARGEST_CONFIG:
        raise _too_large()
    if not isinstance(value, dict):
        raise _unreadable("It is no JSON object.")
    text = text_config(value)
    layers = next((text[name] for name in LAYERS if name in text), None)
    if layers is None:
        raise _unreadable("It says no number of layers (num_hidden_layers).")
    if not is_size(layers) or layers > MOST_LAYERS:
        raise _unreadable(f"Its number of layers is no whole number from 1 to {MOST_LAYERS:,}.")
    return value


def checked_size(value: int | None) -> int | None:
    if value is not None and not is_size(value):
        raise Refused(
            "bad_input",
            "The size of the weights is no number of bytes.",
            field="weights_bytes",
            remedy="Use the sum of the weight files in bytes, e.g. 16381470720, or leave it out.",
        )
    return value


def _unreadable(detail: str) -> Refused:
    return Refused(
        "bad_input", detail, field="config", remedy="Give the whole config.json of the model, as the hub shows it."
    )


def _too_large() -> Refused:
    return Refused(
        "bad_input",
        "It is larger than 1 MiB.",
        field="config",
        remedy="Give the model's config.json alone; those of known models have a few kB.",
    )
