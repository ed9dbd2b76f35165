"""What a plan starts, as compose files, systemd units and a script: the same words, by node."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from apps.plan import stories
from apps.plan.spec import Given, Spec
from apps.plan.step import Plan
from apps.recipes.formats import compose, shell_script, started, systemd, yaml_text
from apps.recipes.formats.recognise import read
from apps.recipes.formats.writing import Unwritable
from apps.shell import Secret
from tests.plan import sheets

GIVEN = Given(deployment=7, revision=3, clear=sheets.CONSENT)


def plan_of(**changes: object) -> Plan:
    spec = Spec(**{**sheets_spec(), **changes})  # type: ignore[arg-type]
    return stories.launch(spec, {"spark-1a32": sheets.head(), "spark-5be3": sheets.second()}, given=GIVEN)


def sheets_spec() -> dict[str, object]:
    return {
        "name": "qwen", "model": "Qwen/Qwen3.5-122B-A10B-FP8", "model_path": "/models/Qwen3.5-122B-A10B-FP8",
        "nodes": ("spark-1a32", "spark-5be3"), "image": "hellohal2064/vllm-qwen3.5-gb10", "container": "vllm-qwen35",
        "tensor_parallel": 2, "environment": (("A", "100 % of $HOME \"x\" \\ 'y'"),), "secrets": (Secret("HF_TOKEN", "hub"),),
    }  # fmt: skip


def containers(plan: Plan) -> dict[str, started.Container]:
    return {one.name: one for one in started.of_plan(plan) if isinstance(one, started.Container)}


@pytest.mark.parametrize("cluster", ["ray", "native"])
def test_compose_says_what_docker_run_says(cluster: str) -> None:
    plan = plan_of(cluster=cluster)
    files = compose.of_plan(plan)
    assert sorted(files) == ["spark-1a32/compose.yaml", "spark-5be3/compose.yaml"]
    for path, text in files.items():
        (service,) = yaml_text.load(text).value["services"].values()
        one = containers(plan)[service["container_name"]]
        assert one.node == path.partition("/")[0]
        assert service["image"] == one.image and service["network_mode"] == "host" and service["restart"] == "no"
        assert [word.replace("$$", "$") for word in service["command"]] == list(one.command)
        assert service["environment"]["A"].replace("$$", "$") == "100 % of $HOME \"x\" \\ 'y'"
        assert service["environment"]["HF_TOKEN"].startswith("${HF_TOKEN:?")
        assert service["volumes"] == ["/models/Qwen3.5-122B-A10B-FP8:/models/Qwen3.5-122B-A10B-FP8:ro"]
        assert service["devices"] == ["/dev/infiniband"] and service["ulimits"] == {"memlock": {"soft": -1, "hard": -1}}
        assert not any("SPARKWEB" in word or "sparkweb" in word for word in service["command"])
    head = files["spark-1a32/compose.yaml"]
    assert head.startswith("# then, on spark-1a32: docker exec vllm-qwen35-r0 vllm serve") == (cluster == "ray")


def test_a_native_compose_file_is_read_as_the_same_recipe() -> None:
    found = read(compose.of_plan(plan_of(cluster="native"))["spark-1a32/compose.yaml"])
    assert (found.family, found.body["engine"], found.body["tensor_parallel"], found.world_size) == (
        "compose",
        "vllm",
        2,
        2,
    )
    assert {"volume", "device", "capability", "node"} <= {one.kind for one in found.held}


@pytest.mark.parametrize("cluster", ["ray", "native"])
def test_units_hold_the_same_words(cluster: str) -> None:
    plan = plan_of(cluster=cluster)
    units = systemd.write(plan)
    expected = {"spark-1a32/vllm-qwen35-r0.service", "spark-5be3/vllm-qwen35-r1.service"}
    assert set(units) == expected | ({"spark-1a32/vllm-qwen35-r0-serve.service"} if cluster == "ray" else set())
    for path in expected:
        (line,) = [line for line in units[path].splitlines() if line.startswith("ExecStart=")]
        words = shlex.split(line.removeprefix("ExecStart=").replace("%%", "%").replace("$$", "$"))
        one = containers(plan)[path.partition("/")[2].removesuffix(".service")]
        assert words[:4] == ["/usr/bin/docker", "run", "--name", one.name] and "-d" not in words
        assert words[-len(one.command) - 1 :] == [one.image, *one.command]
        assert "A=100 % of $HOME \"x\" \\ 'y'" in words
        assert f"EnvironmentFile=/etc/sparkweb/{one.name}.env" in units[path] and "HF_TOKEN" in words


def test_a_process_is_a_unit_too() -> None:
    spec = {
        "runtime": "process",
        "cluster": "single",
        "nodes": ("spark-1a32",),
        "tensor_parallel": 1,
        "executable": "/opt/venv/bin/vllm",
        "image": "",
        "container": "",
    }
    plan = plan_of(**spec)
    ((path, text),) = systemd.write(plan).items()
    assert path == "spark-1a32/qwen.service"
    assert (
        "ExecStart=/opt/venv/bin/vllm serve /models/Qwen3.5-122B-A10B-FP8" in text
        and 'Environment="A=100 %% of $$HOME' in text
    )
    with pytest.raises(Unwritable):
        compose.of_plan(plan)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not there")
def test_systemd_itself_reads_them(tmp_path: Path) -> None:
    files = {path.partition("/")[2]: text for path, text in systemd.write(plan_of(cluster="ray")).items()}
    for name, text in files.items():
        (tmp_path / name).write_text(
            text.replace("/usr/bin/docker", "/bin/true").replace("Requires=docker.service\n", "")
        )
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *[str(tmp_path / name) for name in files]],
        capture_output=True,
        text=True,
    )
    assert not [line for line in done.stderr.splitlines() if str(tmp_path) in line or "Unknown" in line], done.stderr


def test_the_script_is_a_script(tmp_path: Path) -> None:
    file = tmp_path / "plan.sh"
    file.write_text(shell_script.write(plan_of(cluster="ray")))
    assert subprocess.run(["sh", "-n", str(file)], capture_output=True).returncode == 0
    told = subprocess.run(["sh", str(file)], capture_output=True, text=True)
    assert told.returncode == 2 and "usage" in told.stderr
