"""What runs on a node: containers with their processes, programs kept by units."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import time
from typing import TYPE_CHECKING, Any

from apps.lab.machine import host_path, python_path
from apps.lab.world import Container, Listener, Node, Process, Unit, stop_task

if TYPE_CHECKING:
    from apps.lab.call import Call

SLEEPER = "$0 = shift @ARGV; $SIG{TERM} = 'DEFAULT'; sleep 86400 while 1;"


async def puppet(node: Node, title: str, **details: Any) -> Process:
    """A real, sleeping process that the node's tools show under `title`; killing it is noticed."""
    assert node.machine is not None
    perl, prefix = host_path("perl"), "/run/lab/host" if node.machine.mode == "mount" else ""
    words = (
        [prefix + perl, "-e", SLEEPER, title]
        if perl
        else [prefix + python_path(), "-IS", "-c", "import time\nwhile 1: time.sleep(86400)", title]
    )
    container, unit = node.containers.get(details.get("container", "")), details.get("unit", "")
    slice_ = f"docker-{container.id}.scope" if container is not None else unit
    null = os.open(os.devnull, os.O_RDWR)
    try:
        pid, ended = await node.machine.spawn(
            [words[0]],
            {"PATH": node.machine.bin},
            "/",
            [null, null, null],
            words=words,
            cgroup=f"0::/system.slice/{slice_}\n" if slice_ else "",
        )
    finally:
        os.close(null)
    process = Process(pid, title, **details)
    node.processes[pid] = process

    def gone(_: asyncio.Future[int]) -> None:
        if node.processes.get(pid) is process:
            del node.processes[pid]
            if process.on_death is not None:
                process.on_death()

    ended.add_done_callback(gone)
    return process


def end_process(node: Node, process: Process) -> None:
    process.on_death = None
    node.processes.pop(process.pid, None)
    if node.machine is not None:
        node.machine.signal(process.pid, signal.SIGKILL)


async def start_old(node: Node, unit: Unit, *, ready: bool) -> Container:
    """`docker run --rm --name … vllm-node vllm serve …` as a unit of the old stack does it."""
    from apps.lab import scene

    seed = unit.seed
    assert seed is not None
    image = node.image(scene.OLD_IMAGE) or scene.IMAGES[0]
    old = node.containers.get(seed.container)
    if old is not None:
        await remove_container(node, old)
    container = Container(
        seed.container,
        image,
        list(seed.arguments),
        {"HF_HUB_OFFLINE": "1"},
        {"lab.unit": unit.name},
        network="host",
        ipc="host",
        mounts=[("/models", "/models", False)],
        remove=True,
        image_ref="vllm-node",
    )
    if ready:
        container.created = time.time() - node.uptime + 45
    node.containers[container.name] = container
    await start_container(node, container, ready=ready)
    return container


async def start_program(node: Node, unit: Unit) -> None:
    seed = unit.seed
    assert seed is not None
    process = await puppet(node, seed.exec_start, unit=unit.name)
    unit.pid = process.pid
    node.claim(unit.name, seed.gib)

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        body = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n</html>\r\n"
        writer.write(
            b"HTTP/1.1 502 Bad Gateway\r\nServer: nginx/1.24.0 (Ubuntu)\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            % len(body)
            + body
        )
        await writer.drain()

    node.listeners[seed.port] = Listener("0.0.0.0", seed.port, seed.program or "python3", process.pid, proxy)


async def stop_program(node: Node, unit: Unit) -> None:
    seed = unit.seed
    assert seed is not None
    process = node.processes.get(unit.pid)
    if process is not None:
        end_process(node, process)
    node.release(unit.name)
    node.listeners.pop(seed.port, None)


# containers


async def start_container(node: Node, container: Container, *, ready: bool = False) -> None:
    words = [*container.entrypoint, *container.argv] or list(container.image.command)
    container.state, container.finished, container.exit_code, container.oom_killed = "running", None, 0, False
    container.started = container.created + 0.4 if ready else time.time()
    container.ended = asyncio.Event()
    container.user_stopped = False
    process = await puppet(node, " ".join(words)[:300], container=container.name, started=container.started)
    container.pid = process.pid

    def killed() -> None:
        node.world.spawn(finish(node, container, 137))

    process.on_death = killed
    task = node.world.spawn(run_main(node, container, words, ready))
    container.tasks.add(task)
    task.add_done_callback(container.tasks.discard)
    if ready:
        for _ in range(400):
            if (container.engines and container.engines[0].ready) or not container.running:
                break
            await asyncio.sleep(0.01)


async def run_main(node: Node, container: Container, words: list[str], ready: bool) -> None:
    """PID 1 of the container."""
    from apps.lab.call import Call

    assert node.machine is not None

    async def keep(stream: str, data: bytes) -> None:
        container.log.write(data, stream)

    environment = {**container.environment, "LAB_CONTAINER": container.id}
    call = Call(node.machine, words, "/", environment, container.pid, None, None, sink=keep)
    code = 1
    try:
        code = await program(call, container, words, ready)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        await call.err(f"{error!r}\n")
    node.world.spawn(finish(node, container, code))


def known(words: list[str]) -> list[str] | None:
    """The pretend program that these words start, looking through a shell's -c with a single command."""
    if not words:
        return None
    base = words[0].rsplit("/", 1)[-1]
    if base in ("vllm", "ray", "llama-server", "openai-server"):
        return [base, *words[1:]]
    if base in ("python3", "python") and words[1:3] == ["-m", "sglang.launch_server"]:
        return ["sglang", *words[3:]]
    if base == "sglang" and words[1:2] == ["serve"]:
        return ["sglang", *words[2:]]
    if base in ("python3", "python") and words[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]:
        return ["vllm", "serve", *words[3:]]
    if base == "sleep" or (base == "tail" and "/dev/null" in words):
        return ["sleep", *words[1:]]
    if base == "exec":
        return known(words[1:])
    if base in ("bash", "sh") and len(words) >= 3 and words[1] in ("-c", "-lc"):
        text = words[2]
        if any(mark in text for mark in ("&&", "||", ";", "|", "\n", "$(", "`", ">", "<", "$")):
            return None
        with contextlib.suppress(ValueError):
            return known(shlex.split(text))
    return None


async def program(call: Call, container: Container, words: list[str], ready: bool) -> int:
    from apps.lab import engine, engine_command, engine_llamacpp, engine_sglang, ray

    node = container_node(call)
    found = known(words)
    if found is not None and found[0] == "sglang":
        if "sglang" not in container.image.software.packages():
            await call.err("/usr/bin/python3: No module named sglang\n")
            return 1
        return await engine_sglang.serve(call, container, found[1:])
    if found is not None and found[0] == "llama-server":
        return await engine_llamacpp.serve(call, container, found[1:])
    if found is not None and found[0] == "openai-server":
        return await engine_command.serve(call, container, found[1:])
    if found is not None and found[0] == "vllm":
        return await engine.serve(call, container, found[1:], ready=ready)
    if found is not None and found[0] == "ray":
        call.argv = found
        return await ray.ray(call)
    if found is not None and found[0] == "sleep":
        await asyncio.Event().wait()
    base = words[0].rsplit("/", 1)[-1]
    if base in ("bash", "sh") and len(words) == 1:
        return 0
    return await real_program(node, call, container, words)


def container_node(call: Call) -> Node:
    return call.node


async def real_program(node: Node, call: Call, container: Container, words: list[str]) -> int:
    """A shell or another ordinary program as PID 1: really run, with the container's programs in its PATH."""
    assert node.machine is not None
    machine = node.machine
    base = words[0].rsplit("/", 1)[-1]
    path = f"{machine.container_bin}/{base}"
    if not os.path.lexists(machine.inside(path)):
        if not machine.inside(words[0]).exists():
            await call.err(f'exec: "{words[0]}": executable file not found in $PATH\n')
            return 127
        path = words[0]
    pipes = [os.pipe(), os.pipe()]
    null = os.open(os.devnull, os.O_RDONLY)
    environment = {
        **container_environment(node, container),
        **{k: v for k, v in call.environment.items() if k not in ("PATH", "HOME")},
    }
    try:
        pid, ended = await machine.spawn(
            [path], environment, machine.home, [null, pipes[0][1], pipes[1][1]], words=words
        )
    finally:
        for descriptor in (null, pipes[0][1], pipes[1][1]):
            os.close(descriptor)
    try:
        await asyncio.gather(pump(pipes[0][0], call.out), pump(pipes[1][0], call.err))
        code = await asyncio.shield(ended)
        return code if code >= 0 else 128 - code
    except asyncio.CancelledError:
        machine.signal(pid, signal.SIGKILL)
        raise


def container_environment(node: Node, container: Container) -> dict[str, str]:
    assert node.machine is not None
    values = dict(word.split("=", 1) for word in container.image.environment)
    return {
        **values,
        "HOSTNAME": node.name if container.network == "host" else container.id[:12],
        **container.environment,
        "HOME": node.machine.home,
        "PATH": node.machine.container_bin,
        "LAB_CONTAINER": container.id,
    }


async def pump(descriptor: int, write: Any) -> None:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        while data := await reader.read(65536):
            await write(data)
    finally:
        transport.close()


async def finish(node: Node, container: Container, code: int, *, oom: bool = False) -> None:
    """The container's main process has ended: take its engines, memory, ports and processes along."""
    if not container.running:
        return
    container.state, container.exit_code, container.finished, container.oom_killed = "exited", code, time.time(), oom
    await take_down(node, container)
    container.ended.set()
    container.log.wake()
    if container.remove and node.containers.get(container.name) is container:
        del node.containers[container.name]
    elif container.restart_policy in ("always", "unless-stopped") and not container.user_stopped:
        await asyncio.sleep(max(0.3, 3 / node.world.factor))
        if node.containers.get(container.name) is container and not container.running:
            container.restarts += 1
            await start_container(node, container)


async def take_down(node: Node, container: Container) -> None:
    from apps.lab import ray

    for engine in list(container.engines):
        await engine.stop()
    container.engines.clear()
    current = asyncio.current_task()
    for task in list(container.tasks):
        if task is not current:
            await stop_task(task)
    container.tasks.clear()
    ray.leave(node, container)
    for process in [process for process in node.processes.values() if process.container == container.name]:
        noticed = process.on_death if process.pid != container.pid else None
        end_process(node, process)
        if noticed is not None:  # a rank of an engine on another node: that engine notices
            noticed()
    for port in [
        port for port, listener in node.listeners.items() if getattr(listener, "container", None) == container.id
    ]:
        del node.listeners[port]
    node.release(f"container {container.id}")
    container.pid = 0
    kill_real(node, container)


def kill_real(node: Node, container: Container) -> None:
    """Real processes that were started inside the container end with it."""
    assert node.machine is not None
    mark = f"LAB_CONTAINER={container.id}".encode()
    for host, pid in node.machine.host_pids().items():
        with contextlib.suppress(OSError), open(f"/proc/{host}/environ", "rb") as source:
            if mark in source.read().split(b"\0"):
                node.machine.signal(pid, signal.SIGKILL)


async def stop_container(node: Node, container: Container, grace: float) -> None:
    """docker stop: PID 1 gets TERM; these programs end within about two seconds."""
    if not container.running:
        return
    container.user_stopped = True
    await asyncio.sleep(min(grace, 2.0) / node.world.factor)
    code = 0 if known([*container.entrypoint, *container.argv]) and container.engines else 143
    await finish(node, container, code)


async def kill_container(node: Node, container: Container) -> None:
    if container.running:
        container.user_stopped = True
        await finish(node, container, 137)


async def remove_container(node: Node, container: Container) -> None:
    if container.running:
        await kill_container(node, container)
    if node.containers.get(container.name) is container:
        del node.containers[container.name]
