"""The table of reasons is whole, unambiguous and readable."""

from __future__ import annotations

import io
import json

import pytest

from apps.diagnosis.reasons import (
    NEVER,
    ONCE,
    ONCE_AFTER_CLEANUP,
    POLICY,
    QUEUE,
    REASONS,
    RESUME,
    RETRY_CLASSES,
    TRANSIENT,
    UnknownReason,
    known,
    main,
    reason,
)

DESIGNED = {
    NEVER: (
        "ssh_auth host_key_changed host_key_unknown sudo_denied docker_missing docker_denied toolkit_missing "
        "disk_full clock_skew driver_mismatch driver_too_old port_busy foreign_container does_not_fit "
        "memory_not_released oom_gpu oom_host ray_oom_killer os_floor_reached free_below_requested "
        "shm_too_small hub_auth hub_gated hub_missing model_path_missing manifest_mismatch ray_wrong_ip "
        "ray_version_mismatch fabric_down not_ssh other_deployment bad_args unsupported_model image_arch image_too_old "
        "kernel_unsupported ptxas_too_old kv_too_small tp_indivisible cancelled superseded internal "
    ),
    TRANSIENT: "ssh_timeout ssh_refused no_route dns jump_unreachable jump_refused ssh_busy",
    QUEUE: "node_reserved",
    RESUME: "hub_unreachable hub_rate_limited copy_interrupted image_pull",
    ONCE_AFTER_CLEANUP: "ray_join_timeout nccl_init port_race",
    ONCE: "load_stalled http_never_ready smoke_failed exited rank_lost",
    POLICY: "rebooted replaced vanished",
}


@pytest.mark.parametrize(("retry", "names"), DESIGNED.items())
def test_every_designed_reason_has_its_retry_class(retry: str, names: str) -> None:
    for name in names.split():
        assert REASONS[name].retry == retry, name


def test_transient_reasons_are_tried_three_times() -> None:
    assert reason("ssh_timeout").delays_s == (5.0, 20.0, 60.0) and reason("ssh_timeout").retries == 3
    assert reason("ssh_auth").retries == 0 and reason("nccl_init").retries == 1


def test_names_and_aliases_are_unambiguous() -> None:
    names = [*REASONS, *(alias for entry in REASONS.values() for alias in entry.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("entry", REASONS.values(), ids=lambda entry: entry.name)
def test_every_reason_can_be_read(entry: object) -> None:
    assert entry.retry in RETRY_CLASSES  # type: ignore[attr-defined]
    for text in (entry.sentence, entry.remedy):  # type: ignore[attr-defined]
        assert text.endswith(".") and text[0].isupper()
    assert entry.title and not entry.title.endswith(".")  # type: ignore[attr-defined]


def test_a_detail_after_a_colon_is_no_part_of_the_name() -> None:
    assert reason("unknown_argument:--swap-space").name == "bad_args"
    assert known("port_in_use:8000") and not known("nothing")
    with pytest.raises(UnknownReason):
        reason("nothing")


def test_the_command() -> None:
    out = io.StringIO()
    assert main(["--json"], io.BytesIO(), out) == 0
    rows = json.loads(out.getvalue())
    assert {row["name"] for row in rows} == set(REASONS)
    assert {"sentence", "remedy", "retry", "aliases"} <= set(rows[0])
    assert main([], io.BytesIO(), io.StringIO()) == 0
    assert main(["--what"], io.BytesIO(), io.StringIO()) == 2
