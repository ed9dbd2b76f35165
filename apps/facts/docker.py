"""Docker as its own JSON tells it, and the ways in which it can't be asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from apps.facts import docker_tables
from apps.facts.fact import Fact, fact
from apps.facts.masking import masked
from apps.facts.quantities import size
from apps.facts.sheet import Evidence
from apps.facts.values import Container, Docker, GpuProcess, Image

PROBLEMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "docker_denied",
        re.compile(
            r"permission denied[^\n]{0,200}(?:docker API|docker daemon|docker\.sock)|dial unix [^\n]{0,120}docker\.sock: "
            r"connect: permission denied",
            re.IGNORECASE,
        ),
    ),
    (
        "docker_down",
        re.compile(
            r"Cannot connect to the Docker daemon|Is the docker daemon running|failed to connect to the docker API|"
            r"error during connect:",
            re.IGNORECASE,
        ),
    ),
    (
        "docker_missing",
        re.compile(r"docker['\"]?: (?:command )?not found|docker: not found|Unknown command:? '?docker", re.IGNORECASE),
    ),
)
# Why docker would not start a container: said once on stderr, and the container has no log.
_REFUSALS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "container_name_in_use",
        re.compile(r"Conflict\. The container name \"[^\"\n]{1,200}\" is already in use"),
    ),
    (
        "port_in_use",
        re.compile(
            r"port is already allocated|bind: address already in use|host port [^\n]{0,80}address already in use"
        ),
    ),
    ("no_such_container", re.compile(r"No such container: ")),
    ("manifest_unknown", re.compile(r"manifest (?:for \S+ )?(?:not found|unknown)|pull access denied for ")),
    ("no_such_image", re.compile(r"No such image: |Unable to find image '[^'\n]{1,300}' locally\s*\Z")),
    ("exec_format_error", re.compile(r"exec format error|no matching manifest for linux/")),
    ("no_space_left", re.compile(r"no space left on device", re.IGNORECASE)),
    ("device_missing", re.compile(r"error gathering device information while adding custom device")),
    ("mount_source_missing", re.compile(r"bind source path does not exist")),
    ("command_not_found", re.compile(r"executable file not found in \$PATH")),
)
_REASONS = {
    "driver_too_old_for_image": "driver_too_old",
    "container_name_in_use": "foreign_container",
    "port_in_use": "port_busy",
    "no_such_container": "vanished",
    "manifest_unknown": "image_not_found",
    "no_such_image": "image_missing",
    "exec_format_error": "image_arch",
    "no_space_left": "disk_full",
    "device_missing": "bad_args",
    "mount_source_missing": "model_path_missing",
    "command_not_found": "program_missing",
}
_NEEDS_CUDA = re.compile(r"unsatisfied condition: cuda\s*>=\s*([0-9]+\.[0-9]+)")
_TOOLKIT = re.compile(
    r"could not select device driver \"?\"? with capabilities: \[\[gpu\]\]|unknown or invalid runtime name: nvidia|"
    r"nvidia-container-(?:cli|runtime)[^\n]{0,60}(?:not found|no such file)|unresolvable CDI devices|"
    r"failed to discover GPU vendor from CDI"
)
_STATUS_CODE = re.compile(r"^(?:Exited|Restarting) \((\d{1,6})\)")
_STATUS_HEALTH = re.compile(r"\((?:health: )?(starting|healthy|unhealthy)\)")
_LABEL = re.compile(r"(?:^|,)([A-Za-z0-9][A-Za-z0-9_./-]*)=")
_SHOWN_ENV = {
    "TORCH_CUDA_ARCH_LIST",
    "CUDA_VERSION",
    "NV_CUDA_LIB_VERSION",
    "PYTORCH_VERSION",
    "VLLM_VERSION",
    "NCCL_VERSION",
    "NVIDIA_REQUIRE_CUDA",
    "NVIDIA_VISIBLE_DEVICES",
    "FLASHINFER_CUDA_ARCH_LIST",
    "NVIDIA_PYTORCH_VERSION",
    "SGLANG_VERSION",
    "VLLM_USAGE_SOURCE",
    "HF_HOME",
}


def documents(text: str) -> Iterator[Any]:
    """Every JSON value of the output: one a line, an array over many lines, or several after each other. Other lines are noise."""
    decoder = json.JSONDecoder()
    at, end, failures = 0, len(text), 0
    while at < end and failures < 200:  # so that a hostile text costs no more than one that is honest
        start = _next_start(text, at)
        if start is None:
            return
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            newline = text.find("\n", start)
            at, failures = end if newline < 0 else newline + 1, failures + 1
            continue
        yield value


_START = re.compile(r"^[ \t]*([\[{])", re.MULTILINE)


def _next_start(text: str, at: int) -> int | None:
    found = _START.search(text, at)
    return found.start(1) if found else None


def objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects, arrays opened."""
    for value in documents(text):
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield each


def problem(evidence: Evidence) -> tuple[str, str] | None:
    """(reason, line): docker_denied, docker_down, docker_missing, toolkit_missing, driver_too_old_for_image; None when all is well."""
    for text in (evidence.stderr, evidence.stdout[:65536]):
        for reason, pattern in PROBLEMS:
            found = pattern.search(text)
            if found:
                return reason, _line(text, found.start())
        needs = _NEEDS_CUDA.search(text)
        if needs:
            return "driver_too_old_for_image", _line(text, needs.start())
        toolkit = _TOOLKIT.search(text)
        if toolkit:
            return "toolkit_missing", _line(text, toolkit.start())
        for reason, pattern in _REFUSALS:
            found = pattern.search(text)
            if found:
                return reason, _line(text, found.start())
    return ("docker_missing", evidence.stderr.strip()[:300]) if evidence.exit_code == 127 else None


def _line(text: str, at: int) -> str:
    end = text.find("\n", at)
    return text[text.rfind("\n", 0, at) + 1 : end if end >= 0 else len(text)].strip()[:400]


def text_of(value: Any) -> str | None:
    """A JSON string with something in it; docker writes unknown as "N/A", "<none>" or null."""
    if not isinstance(value, str) or value.strip() in {"", "N/A", "<none>", "<no value>"}:
        return None
    return value.strip()


def number_of(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def part(value: Any, *path: str) -> Any:
    """A nested value, None where the way ends."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def labels_of(value: Any) -> dict[str, str]:
    """Labels as an object, or as `docker ps` joins them: commas between, and commas within values.

    A new label begins where a comma is followed by a key and `=`; so a value that itself holds `,word=` is cut there:
    `docker inspect` has the truth and is read where it can be.
    """
    if isinstance(value, dict):
        return {str(key): str(each) for key, each in value.items() if each is not None}
    if not isinstance(value, str):
        return {}
    starts = list(_LABEL.finditer(value))
    if not starts:
        return {}
    ends = [found.start() for found in starts[1:]] + [len(value)]
    return {found.group(1): value[found.end() : end] for found, end in zip(starts, ends, strict=True)}


def containers_from_ps(text: str) -> tuple[Container, ...]:
    """`docker ps -a --format '{{json .}}'` of 20.10 to 29, one object a line; podman's array; else the table for people."""
    found = []
    rows = list(objects(text)) or list(docker_tables.containers(text))
    for each in rows:
        names = each.get("Names")
        name = text_of(names[0] if isinstance(names, list) and names else names) or text_of(each.get("Name"))
        if name is None or isinstance(each.get("State"), dict) or "RepoDigests" in each:
            continue
        status = text_of(each.get("Status"))
        code, health = _STATUS_CODE.match(status or ""), _STATUS_HEALTH.search(status or "")
        said = text_of(each.get("HealthStatus"))
        labels = labels_of(each.get("Labels"))
        found.append(
            Container(
                name=name.split(",")[0].lstrip("/"),
                id=text_of(each.get("ID")) or text_of(each.get("Id")),
                image=text_of(each.get("Image")),
                state=text_of(each.get("State")) or _state_of(status),
                status=status,
                health=(said if said and said != "none" else None) or (health.group(1) if health else None),
                exit_code=int(code.group(1)) if code else None,
                labels=labels,
                ports=_listed_ports(each.get("Ports")),
                command=_listed_command(each.get("Command")),
                network=text_of(each.get("Networks")),
                compose_project=labels.get("com.docker.compose.project"),
            )
        )
    return tuple(found)


def _listed_command(value: Any) -> str | None:
    """docker quotes the command and cuts it, podman lists its words."""
    if isinstance(value, list):
        return masked(" ".join(word for word in value if isinstance(word, str)))[:4000] or None
    return masked((text_of(value) or "").strip('"')) or None


def _listed_ports(value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        binds = [each for each in value if isinstance(each, dict) and each.get("host_port")]
        return tuple(
            f"{each.get('host_ip') or '0.0.0.0'}:{each['host_port']}->{each.get('container_port')}/{each.get('protocol')}"  # noqa: S104 - what podman means
            for each in binds
        )
    return tuple(port.strip() for port in (text_of(value) or "").split(",") if port.strip())


def _state_of(status: str | None) -> str | None:
    """`docker ps` of 19.03 and older prints no State."""
    words = {
        "Up": "running",
        "Exited": "exited",
        "Restarting": "restarting",
        "Created": "created",
        "Dead": "dead",
        "Removal": "removing",
    }
    if status is None:
        return None
    return "paused" if status.endswith("(Paused)") else words.get(status.split(" ")[0])


def containers_from_inspect(text: str) -> tuple[Container, ...]:
    """`docker inspect` of containers, or objects of `{"name", "State"}`."""
    return tuple(container for each in objects(text) if (container := _inspected(each)) is not None)


def _inspected(each: dict[str, Any]) -> Container | None:
    state = each.get("State")
    name = text_of(each.get("Name")) or text_of(each.get("name"))
    if not isinstance(state, dict):
        if "ExitCode" not in each or "Status" not in each or "Names" in each or "State" in each:
            return None
        state = each  # docker inspect --format '{{json .State}}'
    labels = labels_of(part(each, "Config", "Labels"))
    status = text_of(state.get("Status"))
    exited = status in {"exited", "dead", "restarting"}
    entry, arguments = part(each, "Path"), part(each, "Args")
    words = [entry] + (arguments if isinstance(arguments, list) else [])
    health = text_of(part(state, "Health", "Status"))
    oom = state.get("OOMKilled")
    return Container(
        name=(name or text_of(each.get("Id")) or "?").lstrip("/"),
        id=text_of(each.get("Id")),
        image=text_of(part(each, "Config", "Image")),
        image_id=text_of(each.get("Image")),
        state=status,
        health=health if health != "none" else None,
        exit_code=number_of(state.get("ExitCode")) if exited else None,
        restarts=number_of(each.get("RestartCount")),
        restart_policy=text_of(part(each, "HostConfig", "RestartPolicy", "Name")),
        started_at=_moment(state.get("StartedAt")),
        finished_at=_moment(state.get("FinishedAt")),
        pid=number_of(state.get("Pid")) or None,
        labels=labels,
        ports=_ports(part(each, "NetworkSettings", "Ports")),
        oom_killed=oom if isinstance(oom, bool) else None,
        error=text_of(state.get("Error")),
        command=masked(" ".join(str(word) for word in words if isinstance(word, str)))[:4000] or None,
        network=text_of(part(each, "HostConfig", "NetworkMode")),
        compose_project=labels.get("com.docker.compose.project"),
        memory_limit_bytes=number_of(part(each, "HostConfig", "Memory")) or None,
        shm_bytes=number_of(part(each, "HostConfig", "ShmSize")) or None,
    )


def _moment(value: Any) -> str | None:
    """Docker's zero time (0001-01-01) means never."""
    said = text_of(value)
    return None if said is None or said.startswith("0001-") else said


def _ports(value: Any) -> tuple[str, ...]:
    if not isinstance(value, dict):
        return ()
    found = []
    for inner, binds in value.items():
        for bind in binds if isinstance(binds, list) else []:
            if isinstance(bind, dict):
                found.append(f"{bind.get('HostIp') or '0.0.0.0'}:{bind.get('HostPort')}->{inner}")  # noqa: S104 - what docker shows
    return tuple(found)


def joined(
    listed: tuple[Container, ...],
    inspected: tuple[Container, ...],
    processes: tuple[GpuProcess, ...] = (),
    groups: dict[str, tuple[int, int | None]] | None = None,
) -> tuple[Container, ...]:
    """`docker ps` for docker's own words, `docker inspect` for everything exact, GPU processes and cgroups (`memory`) for
    memory and swap (bytes)."""
    exact: dict[str | None, Container] = {each.id: each for each in inspected if each.id}
    by_name = {each.name: each for each in inspected}
    found = []
    for each in listed or inspected:
        other = (
            exact.get(each.id)
            or next(
                (
                    one
                    for key, one in exact.items()
                    if each.id and len(each.id) >= 12 and (key or "").startswith(each.id)
                ),
                None,
            )
            or by_name.get(each.name)
        )
        whole = (
            each
            if other is None or other is each
            else replace(
                other,
                name=each.name,
                image=each.image or other.image,
                status=each.status,
                ports=each.ports or other.ports,
                labels=other.labels or each.labels,
                health=other.health or each.health,
                state=other.state or each.state,
                exit_code=other.exit_code if other.exit_code is not None else each.exit_code,
                command=other.command or each.command,
            )
        )
        gpu = sum((process.mib or 0) * 1024**2 for process in processes if process.container in {whole.id, whole.name})
        own, swapped = (groups or {}).get(whole.id or "", (0, None))
        found.append(replace(whole, memory_bytes=(gpu + own) or None, swap_bytes=swapped))
    return tuple(found)


def images_from_list(text: str) -> tuple[Image, ...]:
    """`docker images --format '{{json .}}'`: N/A and <none> are words there; sizes are decimal (18.5GB)."""
    found = []
    for each in list(objects(text)) or list(docker_tables.images(text)):
        if "Repository" not in each and "Tag" not in each:
            continue
        repository, tag = text_of(each.get("Repository")), text_of(each.get("Tag"))
        found.append(
            Image(
                ref=f"{repository}:{tag}" if repository and tag else None,
                id=text_of(each.get("ID")),
                digest=text_of(each.get("Digest")),
                size_bytes=size(text_of(each.get("Size")), base=1000),
                created=text_of(each.get("CreatedAt")),
            )
        )
    return tuple(found)


def images_from_inspect(text: str) -> tuple[Image, ...]:
    """`docker image inspect`: one Image per tag (one for a dangling image)."""
    found = []
    for each in objects(text):
        if "RepoTags" not in each and ("Architecture" not in each or "ServerVersion" in each):
            continue
        names = each.get("RepoTags") or each.get("Names")  # podman lists its images by Names
        tags: list[str | None] = [
            tag for tag in (names if isinstance(names, list) else []) if isinstance(tag, str) and tag != "<none>:<none>"
        ]
        digests = [digest for digest in each.get("RepoDigests") or [] if isinstance(digest, str)]
        environment = _environment(part(each, "Config", "Env"))
        for tag in tags or [None]:
            repository = tag.rsplit(":", 1)[0] if tag else None
            digest = next(
                (one for one in digests if repository and one.startswith(repository + "@")),
                digests[0] if digests else None,
            )
            found.append(
                Image(
                    ref=tag,
                    id=text_of(each.get("Id")),
                    digest=digest.rsplit("@", 1)[-1] if digest else None,
                    arch=text_of(each.get("Architecture")),
                    size_bytes=number_of(each.get("Size")),
                    created=text_of(each.get("Created")),
                    env=environment,
                    labels=labels_of(part(each, "Config", "Labels")),
                    entrypoint=_words(part(each, "Config", "Entrypoint")),
                )
            )
    return tuple(found)


def _words(value: Any) -> tuple[str, ...]:
    """A list of words, one text in old images and in podman's answers."""
    if isinstance(value, str):
        return tuple(value.split())
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()


def _environment(value: Any) -> dict[str, str]:
    pairs = (
        [entry.split("=", 1) for entry in value if isinstance(entry, str) and "=" in entry]
        if isinstance(value, list)
        else []
    )
    return {name: text for name, text in pairs if name in _SHOWN_ENV or name.endswith("_CUDA_ARCH_LIST")}


def joined_images(listed: tuple[Image, ...], inspected: tuple[Image, ...]) -> tuple[Image, ...]:
    """The list with architecture, exact size and what is inside."""
    by_ref = {each.ref: each for each in inspected if each.ref}
    by_id = {(each.id or "").removeprefix("sha256:"): each for each in inspected}
    found = []
    for each in listed or inspected:
        bare = (each.id or "").removeprefix("sha256:")
        other = (
            by_ref.get(each.ref or "")
            or by_id.get(bare)
            or next((one for key, one in by_id.items() if len(bare) >= 12 and key.startswith(bare)), None)
        )
        found.append(
            each
            if other is None or other is each
            else replace(
                each,
                id=other.id or each.id,
                digest=each.digest or other.digest,
                arch=other.arch,
                size_bytes=other.size_bytes or each.size_bytes,
                created=other.created or each.created,
                env=other.env,
                labels=other.labels,
                entrypoint=other.entrypoint,
            )
        )
    return tuple(found)


def server(version: Evidence | None, info: Evidence | None = None) -> Docker | None:
    """`docker version` and `docker info` in JSON; absent, forbidden and stopped are values."""
    if version is None:
        return None
    wrong = problem(version)
    told = next(objects(version.stdout), {})
    about = (
        next((each for each in objects(info.stdout) if "ServerVersion" in each or "Runtimes" in each), {})
        if info
        else {}
    )
    runtimes = about.get("Runtimes")
    group, group_version = text_of(about.get("CgroupDriver")), text_of(about.get("CgroupVersion"))
    client, daemon = (
        text_of(part(told, "Client", "Version")),
        text_of(part(told, "Server", "Version")) or text_of(about.get("ServerVersion")),
    )
    if wrong is None and not client and not daemon and version.exit_code is None:
        return None
    root = text_of(about.get("DockerRootDir"))
    return Docker(
        present=bool(client or daemon) or (wrong is not None and wrong[0] != "docker_missing"),
        server_version=daemon,
        client_version=client,
        runtimes=tuple(sorted(str(name) for name in runtimes)) if isinstance(runtimes, dict) else (),
        problem=None if daemon else (wrong[0] if wrong else None),
        evidence=None if daemon or not wrong else wrong[1],
        cgroup=" ".join(filter(None, (group, f"v{group_version}" if group_version else None))) or None,
        storage=text_of(about.get("Driver")),
        root=root,
        snap=("/snap/" in root) if root else None,
    )


def describe(evidence: Evidence) -> dict[str, Any]:
    """Whatever docker printed: containers, images, versions or an error, by the names of the cases."""
    text = evidence.stdout
    told: dict[str, Any] = {}
    listed = containers_from_ps(text) + containers_from_inspect(text)
    if listed or docker_tables.lists_containers(text):
        told["containers"] = [_container(each) for each in listed]
    images = images_from_list(text) or images_from_inspect(text)
    if images:
        sizes = {
            text_of(each.get("ID")): text_of(each.get("Size"))
            for each in list(objects(text)) or list(docker_tables.images(text))
            if "Repository" in each
        }
        told["images"] = [
            {
                "ref": each.ref,
                "dangling": each.ref is None,
                "id": each.id,
                "digest": each.digest,
                "arch": each.arch,
                "size": sizes.get(each.id),
                "size_bytes": each.size_bytes,
                "created": each.created,
                "env": each.env,
            }
            for each in images
        ]
    if not told:
        told |= _about(evidence)
    wrong = problem(evidence) if not told or evidence.exit_code not in {0, None} else None
    needs = _NEEDS_CUDA.search(evidence.stderr) or _NEEDS_CUDA.search(text)
    return (
        told
        | {
            "problem": wrong[0] if wrong else None,
            "reason": _REASONS.get(wrong[0], wrong[0]) if wrong else None,
            "evidence": wrong[1] if wrong else None,
        }
        | ({"needs_cuda": needs.group(1)} if needs else {})
    )


def _about(evidence: Evidence) -> dict[str, Any]:
    """What `docker version` and `docker info` say of docker itself, in JSON or for people."""
    printed = docker_tables.info(evidence.stdout)
    if printed:
        evidence = replace(evidence, stdout=json.dumps(printed))
    keys = {name for each in objects(evidence.stdout) for name in each}
    if not keys & {"Client", "Server", "ServerVersion"}:
        return dict(docker_tables.versions(evidence.stdout))
    asked = server(evidence, evidence)
    if asked is None:
        return {}
    told: dict[str, Any] = {"client_version": asked.client_version, "server_version": asked.server_version}
    if "ServerVersion" in keys:
        about = next(each for each in objects(evidence.stdout) if "ServerVersion" in each)
        told |= {
            "runtimes": list(asked.runtimes),
            "default_runtime": text_of(about.get("DefaultRuntime")),
            "gpu_runtime": "nvidia" in asked.runtimes or bool(about.get("DiscoveredDevices")),
            "cgroup": asked.cgroup,
            "storage": asked.storage,
            "root": asked.root,
            "snap": asked.snap,
            "arch": text_of(about.get("Architecture")),
        }
    return told


def _container(each: Container) -> dict[str, Any]:
    return {
        "name": each.name,
        "id": each.id,
        "image": each.image,
        "state": each.state,
        "status": each.status,
        "health": each.health,
        "exit_code": each.exit_code,
        "oom_killed": each.oom_killed,
        "restarts": each.restarts,
        "restart_policy": each.restart_policy,
        "started_at": each.started_at,
        "finished_at": each.finished_at,
        "ran_s": seconds_between(each.started_at, each.finished_at),
        "ended_by": ended_by(each),
        "ports": list(each.ports),
        "labels": each.labels,
        "command": each.command,
        "network": each.network,
        "error": each.error,
        "memory_limit_bytes": each.memory_limit_bytes,
        "shm_bytes": each.shm_bytes,
    }


def seconds_between(first: str | None, second: str | None) -> float | None:
    """Between two of docker's RFC 3339 moments (nine digits of fraction, which datetime can't read), in s; None if out of order."""
    moments = []
    for said in (first, second):
        found = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,12})?", said or "")
        if not found:
            return None
        try:
            whole = datetime.fromisoformat(found.group(1))
        except ValueError:
            return None
        moments.append((whole, float(found.group(2) or 0)))
    (start, start_part), (end, end_part) = moments
    passed = (end - start).total_seconds() + end_part - start_part
    return round(passed, 3) if passed >= 0 else None


def ended_by(each: Container) -> str | None:
    """How a container ended: `memory_limit` (its own limit or its cgroup), `killed` (SIGKILL from outside: look into the kernel log
    before naming memory), `segmentation_fault`, `terminated`, `error`, `finished`. None while it runs."""
    if each.exit_code is None:
        return None
    if each.oom_killed:
        return "memory_limit"
    return {
        0: "finished",
        137: "killed",
        139: "segmentation_fault",
        143: "terminated",
        134: "aborted",
        125: "never_started",
        126: "never_started",
        127: "never_started",
    }.get(each.exit_code, "error")


@fact
class DockerFact(Fact):
    """Versions; docker missing, forbidden or stopped is a value."""

    name = "docker"
    reads = "docker version --format '{{json .}}' (or any docker ps, images, inspect in JSON, or their error)"
    timeout_s = 10
    script = "docker version --format '{{json .}}'"

    @classmethod
    def parse(cls, evidence: Evidence) -> Docker | None:
        return server(evidence)


@fact
class DockerInfoFact(Fact):
    """Runtimes, cgroup, storage, root folder."""

    name = "docker-info"
    reads = "docker info --format '{{json .}}'"
    timeout_s = 15
    script = "docker info --format '{{json .}}'"

    @classmethod
    def parse(cls, evidence: Evidence) -> Docker | None:
        return server(evidence, evidence)


def cdi(text: str) -> tuple[str, ...] | None:
    """`@cdi FILE PATHS` for each specification and `missing<TAB>PATH` for what it names and the node has not; None without any."""
    if not re.search(r"^@cdi ", text, re.MULTILINE):
        return None
    return tuple(dict.fromkeys(line[8:] for line in text.splitlines() if line.startswith("missing\t") and line[8:]))


@fact
class CdiFact(Fact):
    """Whether the CDI specifications of the GPU still fit the driver that is installed."""

    name = "cdi"
    reads = "hostPath lines of /etc/cdi/* and /var/run/cdi/*, as `@cdi FILE` and `missing<TAB>PATH` lines"
    timeout_s = 5
    script = r"""
for file in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
  [ -r "$file" ] || continue
  printf '@cdi %s\n' "$file"
  sed -n -e 's/^[-[:space:]]*"\{0,1\}hostPath"\{0,1\}: *"\{0,1\}\([^",]*\)"\{0,1\},\{0,1\} *$/\1/p' "$file" | sort -u | head -n 500 |
  while IFS= read -r path; do [ -e "$path" ] || printf 'missing\t%s\n' "$path"; done
done
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[str, ...] | None:
        return cdi(evidence.stdout)


@fact
class ContainersFact(Fact):
    """All containers in docker's own words."""

    name = "containers"
    reads = "docker ps -a --no-trunc --format '{{json .}}'"
    timeout_s = 10
    script = r"""
out=$(docker ps -a --no-trunc --format '{{json .}}'); code=$?
printf '%s\n' "$out" | sed -e "$SPARKWEB_MASK"
exit $code
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Container, ...] | None:
        if evidence.timed_out or problem(evidence):
            return None
        found = containers_from_ps(evidence.stdout)
        return found if found or evidence.exit_code == 0 else None


@fact
class ContainerDetailsFact(Fact):
    """Labels, health, exit code, restarts, process ids. The environment stays on the node: it holds secrets."""

    name = "container-details"
    reads = "docker inspect $(docker ps -aq --no-trunc)"
    timeout_s = 15
    script = r"""
ids=$(docker ps -aq --no-trunc) || exit $?
[ -n "$ids" ] || exit 0
docker inspect $ids | sed -e '/^ *"Env": \[$/,/^ *\]/d' | sed -e "$SPARKWEB_MASK"
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Container, ...] | None:
        if problem(evidence):
            return None
        return containers_from_inspect(evidence.stdout)


@fact
class ContainerMemoryFact(Fact):
    """What the kernel counts for each container's cgroup, in bytes, by container id: memory and swap.

    As in `docker stats`, file pages that nobody used lately (`inactive_file`) do not count: they go when memory is needed,
    and a model that was just read would stand there a second time.
    """

    name = "container-memory"
    reads = "memory.current, inactive_file of memory.stat, memory.swap.current of each container's cgroup, between tabs"
    timeout_s = 5
    script = r"""
for file in /sys/fs/cgroup/system.slice/docker-*.scope/memory.current /sys/fs/cgroup/docker/*/memory.current \
            /sys/fs/cgroup/memory/docker/*/memory.usage_in_bytes; do
  [ -r "$file" ] || continue
  folder=${file%/*}; id=${folder##*/}; id=${id#docker-}; id=${id%.scope}; bytes=; idle=; swap=
  read -r bytes <"$file"
  { while read -r key number; do
      case $key in inactive_file|total_inactive_file) idle=$number ;; esac
    done <"$folder/memory.stat"; } 2>/dev/null
  { read -r swap <"$folder/memory.swap.current"; } 2>/dev/null
  printf '%s\t%s\t%s\t%s\n' "$id" "$bytes" "$idle" "$swap"
done
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> dict[str, tuple[int, int | None]]:
        found = {}
        for line in evidence.stdout.splitlines():
            identity, *cells = line.split("\t")
            sizes = [int(cell) if cell.isascii() and cell.isdecimal() and len(cell) < 19 else None for cell in cells]
            total, idle, swap = (*sizes, None, None, None)[:3]
            if total is not None:
                found[identity] = (max(0, total - (idle or 0)), swap)
        return found


@fact
class ImagesFact(Fact):
    """The images by tag."""

    name = "images"
    reads = "docker images --no-trunc --digests --format '{{json .}}'"
    timeout_s = 15
    script = "docker images --no-trunc --digests --format '{{json .}}'"

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Image, ...] | None:
        if evidence.timed_out or problem(evidence):
            return None
        found = images_from_list(evidence.stdout)
        return found if found or evidence.exit_code == 0 else None


@fact
class ImageDetailsFact(Fact):
    """Architecture, exact size and the variables that say what is inside."""

    name = "image-details"
    reads = "docker image inspect $(docker images -q --no-trunc)"
    timeout_s = 20
    script = r"""
ids=$(docker images -q --no-trunc | sort -u | head -n 200) || exit $?
[ -n "$ids" ] || exit 0
docker image inspect $ids | sed -e "$SPARKWEB_MASK"
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Image, ...] | None:
        if problem(evidence):
            return None
        return images_from_inspect(evidence.stdout)
