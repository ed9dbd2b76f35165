"""Programs that talk to others. Nothing leaves the lab: the story's addresses are the lab's own, all others refuse."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from apps.lab import scene
from apps.lab.call import Call, tool
from apps.lab.machine import host_path
from apps.lab.world import Listener, Node

HUB = "https://huggingface.co"


class Refused(Exception):
    """`reason`: refused, no_route, dns, timeout."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def resolve(node: Node, host: str) -> str:
    """The address of a name of the story. Raises Refused for others."""
    if node.owns(host):
        return "127.0.0.1"
    if host in scene.KNOWN_NAMES:
        return scene.KNOWN_NAMES[host]
    if re.fullmatch(r"[\d.]+", host) or ":" in host:
        return host
    raise Refused("dns")


def reach(node: Node, host: str, port: int) -> Listener:
    """The listener at host:port as this node sees it."""
    address = resolve(node, host)
    target = node if address == "127.0.0.1" or node.owns(address) else node.world.find(address)
    if target is None:
        raise Refused("no_route" if address in scene.UNROUTABLE or not node.seed.internet else "timeout")
    if target is not node and (target.machine is None or (address == target.management and not node.management)):
        raise Refused("no_route")
    listener = target.listeners.get(port)
    if port == 22:
        return Listener("0.0.0.0", 22, "sshd", 1)
    if listener is None or (target is not node and listener.address == "127.0.0.1"):
        raise Refused("refused")
    return listener


async def connect(listener: Listener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.Task[None]]:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    their_reader, their_writer = await asyncio.open_connection(sock=theirs)

    async def serve() -> None:
        try:
            if listener.serve is not None:
                await listener.serve(their_reader, their_writer)
            else:
                await their_reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            their_writer.close()

    return reader, writer, asyncio.create_task(serve())


async def doors_of(call: Call) -> dict[int, str]:
    """Port of something that listens on this node -> the socket file behind which it answers, as the node's programs see it. A node has a
    network of its own, so no port of this machine's would do."""
    node, there = call.node, "/run/lab/door" if call.machine.mode == "mount" else str(call.machine.runtime)
    for port, listener in list(node.listeners.items()):
        if listener.serve is not None and port not in node.doors:
            node.doors[port] = await asyncio.start_unix_server(
                _door(node, port), str(call.machine.runtime / f"p{port}")
            )
    return {port: f"{there}/p{port}" for port in node.doors if port in node.listeners}


def _door(node: Node, port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listener = node.listeners.get(port)
        try:
            if listener is not None and listener.serve is not None:
                await listener.serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    return answer


MESSAGES = {
    "refused": (7, "Failed to connect to {host} port {port} after 0 ms: Couldn't connect to server"),
    "no_route": (7, "Failed to connect to {host} port {port} after 3062 ms: Couldn't connect to server"),
    "timeout": (28, "Connection timed out after {ms} milliseconds"),
    "dns": (6, "Could not resolve host: {host}"),
}


@tool("curl", inside=True)
async def curl(call: Call) -> int:
    hub = call.node.faults.get("hub")
    if hub and call.container is None and any(word.startswith(f"{HUB}/") for word in call.arguments):
        return await _real_curl(call, hub)
    words, urls, headers, body, method = list(call.arguments), [], [], None, ""
    quiet = show_errors = fail = include = head = False
    write_out = output = ""
    limit = 120.0
    while words:
        word = words.pop(0)
        name, _, given = word.partition("=") if word.startswith("--") else (word, "", "")
        if word.startswith("-") and not word.startswith("--") and len(word) > 2:
            letters = word[1:]
            for number, letter in enumerate(letters):
                if letter in "mXHdow":
                    words.insert(0, letters[number + 1 :]) if letters[number + 1 :] else None
                    words.insert(0, f"-{letter}")
                    break
                quiet, show_errors, fail = quiet or letter == "s", show_errors or letter == "S", fail or letter == "f"
                include, head = include or letter == "i", head or letter == "I"
            continue
        if name in ("-m", "--max-time", "--connect-timeout"):
            value = float(given or words.pop(0))
            limit = min(limit, value) if name != "--connect-timeout" else limit
        elif name in ("-X", "--request"):
            method = given or words.pop(0)
        elif name in ("-H", "--header"):
            headers.append(given or words.pop(0))
        elif name in ("-d", "--data", "--data-raw", "--data-binary", "--json"):
            text = given or words.pop(0)
            if text in ("@-", "@/dev/stdin"):
                body = await call.stdin()
            elif text.startswith("@"):
                body = call.machine.inside(text[1:]).read_bytes()
            else:
                body = text.encode()
            if name == "--json":
                headers.append("Content-Type: application/json")
        elif name in ("-o", "--output"):
            output = given or words.pop(0)
        elif name in ("-w", "--write-out"):
            write_out = given or words.pop(0)
        elif name in ("-s", "--silent"):
            quiet = True
        elif name in ("-S", "--show-error"):
            show_errors = True
        elif name in ("-f", "--fail"):
            fail = True
        elif name in ("-i", "--include"):
            include = True
        elif name in ("-I", "--head"):
            head = True
        elif name in ("--retry", "--noproxy", "-u", "--user", "-A", "--interface", "--cacert"):
            words.pop(0) if words and not given else None
        elif name == "--version" or name == "-V":
            await call.out("curl 8.5.0 (aarch64-unknown-linux-gnu) libcurl/8.5.0 OpenSSL/3.0.13\n")
            return 0
        elif not word.startswith("-"):
            urls.append(word)
    if not urls:
        return await call.fail("curl: (2) no URL specified\n", 2)
    parts = urlsplit(urls[0] if "://" in urls[0] else "http://" + urls[0])
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    async def complain(reason: str, seconds: float) -> int:
        code, text = MESSAGES[reason]
        if write_out:
            await call.out(
                write_out.replace("\\n", "\n").replace("%{http_code}", "000").replace("%{response_code}", "000")
            )
        if not quiet or show_errors:
            await call.err(f"curl: ({code}) " + text.format(host=host, port=port, ms=int(seconds * 1000)) + "\n")
        return code

    try:
        if (
            parts.scheme == "https"
            and call.node.seed.internet
            and host in ("huggingface.co", "ghcr.io", "registry-1.docker.io", "github.com", "www.google.com", "1.1.1.1")
        ):
            raise Refused("timeout")
        listener = reach(call.node, host, port)
    except Refused as refused:
        return await complain(refused.reason, min(limit, 5.0))
    reader, writer, serving = await connect(listener)
    lines = [
        f"{method or ('HEAD' if head else 'POST' if body is not None else 'GET')} {parts.path or '/'}{'?' + parts.query if parts.query else ''} HTTP/1.1",
        f"Host: {host}:{port}",
        "User-Agent: curl/8.5.0",
        "Accept: */*",
        "Connection: close",
        *headers,
    ]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
        if not any(line.lower().startswith("content-type:") for line in headers):
            lines.append("Content-Type: application/x-www-form-urlencoded")
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        async with asyncio.timeout(limit):
            head_bytes = await reader.readuntil(b"\r\n\r\n")
            status = int(head_bytes.split(b" ", 2)[1])
            chunked = b"transfer-encoding: chunked" in head_bytes.lower()
            if include or head:
                await call.out(head_bytes)
            saved = b""
            code = 22 if fail and status >= 400 else 0
            while True:
                if chunked:
                    size = int((await reader.readline()).strip() or b"0", 16)
                    data = await reader.readexactly(size) if size else b""
                    await reader.readline()
                else:
                    data = await reader.read(65536)
                if not data:
                    break
                if code:
                    continue
                if output:
                    saved += data
                else:
                    await call.out(data)
            if output and output != "/dev/null":
                call.machine.inside(output if output.startswith("/") else f"{call.cwd}/{output}").write_bytes(saved)
            if code and (not quiet or show_errors):
                await call.err(f"curl: (22) The requested URL returned error: {status}\n")
            if write_out:
                await call.out(
                    write_out.replace("\\n", "\n")
                    .replace("%{http_code}", str(status))
                    .replace("%{response_code}", str(status))
                    .replace("%{time_total}", "0.010")
                )
            return code
    except TimeoutError:
        if not quiet or show_errors:
            await call.err(
                f"curl: (28) Operation timed out after {int(limit * 1000)} milliseconds with 0 bytes received\n"
            )
        return 28
    except (asyncio.IncompleteReadError, OSError, ValueError, IndexError):
        await call.err("curl: (52) Empty reply from server\n")
        return 52
    finally:
        writer.close()
        serving.cancel()


async def _real_curl(call: Call, hub: str) -> int:
    """This machine's curl, asking a hub that a test runs; its files are the node's."""
    if re.fullmatch(r"http://127\.0\.0\.1:\d+", hub) is None:
        return await call.fail("curl: (6) Could not resolve host: huggingface.co\n", 6)
    words = list(call.arguments)
    for at, word in enumerate(words):
        if word.startswith(f"{HUB}/"):
            words[at] = hub + word.removeprefix(HUB)
        elif at and words[at - 1] in ("-o", "-D") and word != "/dev/null":
            words[at] = str(call.machine.inside(word if word.startswith("/") else f"{call.cwd}/{word}"))
    given = await call.stdin() if "-K" in words else b""
    process = await asyncio.create_subprocess_exec(
        "curl", "--noproxy", "*", *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    answer = asyncio.ensure_future(process.communicate(given))
    gone = asyncio.ensure_future(call.hung_up())
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            process.terminate()
        printed, said = await answer
    finally:
        gone.cancel()
        if process.returncode is None:
            process.kill()
    await call.err(said)
    await call.out(printed)
    return process.returncode or 0


@tool("wget", inside=True)
async def wget(call: Call) -> int:
    url = next((word for word in call.arguments if "://" in word), "")
    inner = Call(call.machine, ["curl", "-sf", url], call.cwd, call.environment, call.pid, call.reader, call.writer)
    return 0 if await curl(inner) == 0 else 4


@tool("ping")
async def ping(call: Call) -> int:
    words, count, size, host, undivided, leaving = list(call.arguments), 4, 56, "", False, ""
    while words:
        word = words.pop(0)
        if word in ("-c", "-s", "-W", "-w", "-I", "-M", "-i"):
            value = words.pop(0) if words else ""
            count = int(value) if word == "-c" else count
            size = int(value) if word == "-s" else size
            undivided = undivided or (word, value) == ("-M", "do")
            leaving = value if word == "-I" else leaving
        elif word.startswith("-c"):
            count = int(word[2:])
        elif not word.startswith("-"):
            host = word
    try:
        address = resolve(call.node, host)
    except Refused:
        return await call.fail(f"ping: {host}: Name or service not known\n", 2)
    target = call.node if address == "127.0.0.1" else call.node.world.find(address)
    if target is None or (target is not call.node and address not in [c.address for c in target.cards if c.hca]):
        if (
            address not in scene.UNROUTABLE
            and not call.node.seed.internet
            and not address.startswith(("192.168.200.", "192.168.201."))
        ):
            return await call.fail("ping: connect: Network is unreachable\n", 2)
        await call.out(
            f"PING {host} ({address}) {size}({size + 28}) bytes of data.\n\n--- {host} ping statistics ---\n{count} packets transmitted, 0 received, +{count} errors, 100% packet loss, time {count * 1000}ms\n\n"
        )
        return 1
    await call.out(f"PING {host} ({address}) {size}({size + 28}) bytes of data.\n")
    ends = [card for card in call.node.cards if card.name == leaving]
    ends += [card for card in target.cards if card.address == address]
    if undivided and any(size + 28 > card.mtu or not card.up for card in ends):
        await call.err(f"ping: local error: message too long, mtu={min(card.mtu for card in ends)}\n" * count)
        await call.out(
            f"\n--- {host} ping statistics ---\n{count} packets transmitted, 0 received, +{count} errors, 100% packet loss\n\n"
        )
        return 1
    for number in range(count):
        await call.out(f"{size + 8} bytes from {address}: icmp_seq={number + 1} ttl=64 time=0.{180 + number} ms\n")
    await call.out(
        f"\n--- {host} ping statistics ---\n{count} packets transmitted, {count} received, 0% packet loss, time {count * 1000 - 990}ms\nrtt min/avg/max/mdev = 0.180/0.185/0.190/0.004 ms\n"
    )
    return 0


@tool("ss")
async def ss(call: Call) -> int:
    flags = "".join(word[1:] for word in call.arguments if word.startswith("-") and not word.startswith("--"))
    if "H" not in flags:
        await call.out("State  Recv-Q Send-Q Local Address:Port  Peer Address:Port Process\n")
    node = call.node
    found = [
        ("0.0.0.0", 22, "sshd", 1201),
        ("127.0.0.53%lo", 53, "systemd-resolve", 912),
        ("127.0.0.1", 11000, "dashboard-servi", 1744),
    ]
    found += [(item.address, item.port, item.program, item.pid) for item in node.listeners.values()]
    wanted = {int(number) for word in call.arguments for number in re.findall(r":(\d+)", word)}
    for address, port, program, pid in sorted(found, key=lambda row: row[1]):
        if wanted and port not in wanted:
            continue
        owner = f' users:(("{program}",pid={pid},fd=17))' if "p" in flags and call.root else ""
        await call.out(f"LISTEN 0      2048   {address + ':' + str(port):>20} {'0.0.0.0:*':>15}{owner}\n")
    return 0


@tool("netstat")
async def netstat(call: Call) -> int:
    for item in call.node.listeners.values():
        await call.out(
            f"tcp        0      0 {item.address}:{item.port}            0.0.0.0:*               LISTEN      -\n"
        )
    return 0


@tool("nc")
async def nc(call: Call) -> int:
    words = [word for word in call.arguments if not word.startswith("-") or word == "-"]
    words = (
        [word for number, word in enumerate(words) if not (word.isdigit() and number == 0)] if len(words) > 2 else words
    )
    if len(words) < 2:
        return await call.fail("usage: nc [-options] [destination] [port]\n", 1)
    host, port = words[-2], int(words[-1]) if words[-1].isdigit() else 0
    try:
        reach(call.node, host, port)
    except Refused as refused:
        text = {
            "refused": "Connection refused",
            "no_route": "No route to host",
            "timeout": "Connection timed out",
            "dns": "Name or service not known",
        }[refused.reason]
        return await call.fail(f"nc: connect to {host} port {port} (tcp) failed: {text}\n", 1)
    await call.err(f"Connection to {host} {port} port [tcp/*] succeeded!\n")
    return 0


def split_target(words: list[str], with_value: str) -> tuple[str, list[str]]:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            if len(word) == 2 and word[1] in with_value and rest:
                rest.pop(0)
            continue
        return word, rest
    return "", []


@tool("ssh")
async def ssh(call: Call) -> int:
    if "-V" in call.arguments:
        await call.err("OpenSSH_9.6p1 Ubuntu-3ubuntu13.14, OpenSSL 3.0.13 30 Jan 2024\n")
        return 0
    target, command = split_target(call.arguments, "bcDEeFIiJLlmOopQRSWw")
    host = target.rpartition("@")[2]
    try:
        reach(call.node, host, 22)
    except Refused as refused:
        if refused.reason == "dns":
            return await call.fail(f"ssh: Could not resolve hostname {host}: Name or service not known\r\n", 255)
        text = {"refused": "Connection refused", "no_route": "No route to host", "timeout": "Connection timed out"}[
            refused.reason
        ]
        return await call.fail(f"ssh: connect to host {host} port 22: {text}\r\n", 255)
    if "-N" in call.arguments:  # a forwarding alone, until its caller ends it
        await call.hung_up()
        return 0
    other = call.node if call.node.owns(host) else call.node.world.find(host)
    assert other is not None and other.machine is not None
    client = host_path("ssh")
    if (
        any("/sparkweb/copy/" in word for word in call.arguments)
        and client is not None
        and call.machine.mode == "mount"
    ):
        # With a key made for a copy: the real client, whose connection is carried to the other node's real door
        dial = f"ProxyCommand=/usr/lib-lab/dial /run/lab/door/ssh-{other.name}"
        environment = {**call.environment, "HOME": call.machine.home}
        return await call.become(f"/run/lab/host{client}", ["ssh", "-o", dial, *call.arguments], environment)
    return await elsewhere(call, other, command)


async def elsewhere(call: Call, other: Node, command: list[str]) -> int:
    """Run a command on the other node, as its user, with the caller's input."""
    import os

    assert other.machine is not None
    data = await call.stdin() if "-n" not in call.arguments else b""
    pipes = [os.pipe() for _ in range(3)]
    environment = {
        "HOME": other.machine.home,
        "USER": "aurora",
        "LOGNAME": "aurora",
        "PATH": other.machine.bin,
        "SHELL": "/bin/bash",
    }
    words = ["bash", "-c", " ".join(command)] if command else ["bash", "-s"]
    _, ended = await other.machine.spawn(
        ["/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"],
        environment,
        other.machine.home,
        [pipes[0][0], pipes[1][1], pipes[2][1]],
        words=words,
    )
    for descriptor in (pipes[0][0], pipes[1][1], pipes[2][1]):
        os.close(descriptor)

    def feed() -> None:
        try:
            with os.fdopen(pipes[0][1], "wb") as out:
                out.write(data)
        except OSError:
            pass

    def read(descriptor: int) -> bytes:
        with os.fdopen(descriptor, "rb") as source:
            return source.read()

    _, out, err = await asyncio.gather(
        asyncio.to_thread(feed), asyncio.to_thread(read, pipes[1][0]), asyncio.to_thread(read, pipes[2][0])
    )
    await call.out(out)
    await call.err(err)
    code = await ended
    return code if code >= 0 else 128 - code


@tool("scp", "rsync")
async def copy(call: Call) -> int:
    """Copy to or from the other node by the folders of the lab, at the lab's own speed, with the real tool's words."""
    import os
    import shutil

    real = host_path("rsync")
    ours = "--server" in call.arguments or any("/sparkweb/copy/" in word for word in call.arguments)
    if call.name == "rsync" and ours and real is not None and call.machine.mode == "mount":  # over the real ssh above
        return await call.become(f"/run/lab/host{real}", ["rsync", *call.arguments], call.environment)
    if "--version" in call.arguments:
        await call.out("rsync  version 3.2.7  protocol version 31\n")
        return 0
    rest, words = [], list(call.arguments)
    while words:
        word = words.pop(0)
        if (
            word in ("-e", "--rsh", "-i", "-P", "-o", "--exclude", "--include", "--files-from")
            and words
            and call.name == ("scp" if word in ("-P", "-i", "-o") else "rsync")
        ):
            words.pop(0)
        elif not word.startswith("-"):
            rest.append(word)
    if len(rest) < 2:
        return await call.fail(f"{call.name}: missing file operand\n", 1)
    places = []
    for path in rest:
        host, colon, inner = path.partition(":") if not path.startswith(("/", ".")) else ("", "", path)
        if not colon:
            places.append(
                (call.node, call.machine.inside(path if path.startswith("/") else f"{call.cwd}/{path}"), path)
            )
            continue
        name = host.rpartition("@")[2]
        other = call.node if call.node.owns(name) else call.node.world.find(name)
        if other is None or other.machine is None:
            try:
                reach(call.node, name, 22)
            except Refused as refused:
                text = {
                    "refused": "Connection refused",
                    "no_route": "No route to host",
                    "timeout": "Connection timed out",
                    "dns": "Name or service not known",
                }[refused.reason]
                await call.err(f"ssh: connect to host {name} port 22: {text}\r\n")
            if call.name == "rsync":
                await call.err(
                    "rsync: connection unexpectedly closed (0 bytes received so far) [sender]\nrsync error: unexplained error (code 255) at io.c(232) [sender=3.2.7]\n"
                )
            return 255
        inner = inner or "."
        places.append(
            (other, other.machine.inside(inner if inner.startswith("/") else f"{other.machine.home}/{inner}"), inner)
        )
    target_node, target, _ = places[-1]
    if "disk-full" in target_node.faults:
        return await call.fail(
            f'rsync: [receiver] write failed on "{rest[-1]}": No space left on device (28)\nrsync error: error in file IO (code 11) at receiver.c(380) [receiver=3.2.7]\n',
            11,
        )
    for _, source, text in places[:-1]:
        if not source.exists():
            return await call.fail(
                f'rsync: [sender] link_stat "{text}" failed: No such file or directory (2)\nrsync error: some files/attrs were not transferred (see previous errors) (code 23) at main.c(1338) [sender=3.2.7]\n',
                23,
            )
        files = [path for path in sorted(source.rglob("*")) if path.is_file()] if source.is_dir() else [source]
        total = sum(path.stat().st_size for path in files) or 1
        done = 0
        await call.out("sending incremental file list\n" if call.name == "rsync" else "")
        for file in files:
            into = (
                target / file.relative_to(source if text.endswith("/") else source.parent)
                if source.is_dir()
                else (target / file.name if target.is_dir() else target)
            )
            into.parent.mkdir(parents=True, exist_ok=True)
            size = file.stat().st_size
            if size > 1 << 26:
                with open(file, "rb") as reading, open(into, "wb") as writing:
                    writing.write(reading.read(1 << 20))
                    writing.truncate(size)
            else:
                shutil.copyfile(file, into)
            os.utime(into, (file.stat().st_atime, file.stat().st_mtime))
            done += size
            await call.node.world.pause(size / 700e6)
            if call.name == "rsync" and any(word.startswith("--info=progress2") for word in call.arguments):
                await call.out(
                    f"\r{done:>16,}{done * 100 // total:>4}%  668.27MB/s    0:00:{min(59, int((total - done) / 700e6)):02d} "
                )
        await call.out("\n" if call.name == "rsync" else "")
    return 0
