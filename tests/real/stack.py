"""The stack that a head had before: systemd units that run containers, a container that Docker keeps, a plain process."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from scripts.real_nodes import ENGINE_IMAGE, Nodes

SERVER = """
import http.server, sys
held = b"x" * (int(sys.argv[2]) << 20)
http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
UNIT = """[Unit]
Description={description}
After=docker.service
Requires=docker.service

[Service]
ExecStartPre=-/usr/bin/docker rm -f {container}
ExecStart=/usr/bin/docker run --rm --name {container} --gpus all --network host --ipc host -v /opt/vllm:/opt/vllm:ro \\
  {image} python3 /opt/vllm/server.py {port} {mib}
ExecStop=/usr/bin/docker stop -t 2 {container}
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
"""
PLAIN = """[Unit]
Description=Proxy in front of the vLLM services

[Service]
ExecStart=/usr/bin/python3 /opt/vllm/server.py 8080 5
Restart=always

[Install]
WantedBy=multi-user.target
"""
UNITS = ("vllm-cluster.service", "vllm-embeddings.service", "vllm-proxy.service")
CONTAINERS = ("reranker", "vllm_embeddings", "vllm_node")
WIPE = f"""
for unit in {" ".join(UNITS)}; do
  [ ! -e "/etc/systemd/system/$unit" ] || systemctl disable -q --now "$unit"; rm -f "/etc/systemd/system/$unit"
done
systemctl daemon-reload
"""


def install(nodes: Nodes, name: str, *, port: int) -> None:
    """Starts it on a node; its chat service holds `port`, the others theirs."""
    nodes.inside(name, "sh", "-ec", "\n".join(_commands(port)))


def _commands(port: int) -> Iterator[str]:
    yield "mkdir -p /opt/vllm"
    yield f"printf %s {shlex.quote(SERVER)} >/opt/vllm/server.py"
    chat = {"description": "vLLM cluster (GLM-4.7-Flash chat)", "container": "vllm_node", "port": port, "mib": 60}
    other = {"description": "vLLM embeddings", "container": "vllm_embeddings", "port": 8001, "mib": 20}
    texts = (UNIT.format(image=ENGINE_IMAGE, **chat), UNIT.format(image=ENGINE_IMAGE, **other), PLAIN)
    for unit, text in zip(UNITS, texts, strict=True):
        yield f"printf %s {shlex.quote(text)} >/etc/systemd/system/{unit}"
    yield "systemctl daemon-reload"
    yield f"systemctl enable -q --now {' '.join(UNITS)}"
    yield (
        "docker run -d --restart unless-stopped --name reranker --network host -v /opt/vllm:/opt/vllm:ro "
        f"{ENGINE_IMAGE} python3 /opt/vllm/server.py 8002 20"
    )


def running(nodes: Nodes, name: str) -> bool:
    """Whether all of it is there."""
    shown = nodes.inside(name, "docker", "ps", "--format", "{{.Names}}", check=False).split()
    return set(CONTAINERS) <= set(shown)
