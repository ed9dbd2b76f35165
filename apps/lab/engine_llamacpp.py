"""The pretend llama-server: one GGUF file; it listens at once and says 503 until the model is there."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.lab import engine_http
from apps.lab.call import Call
from apps.lab.engine_other import GIB, BadOptions, Dies, Program, live, parsed
from apps.lab.world import Container

VALUED = {
    "--model",
    "--alias",
    "--host",
    "--port",
    "--ctx-size",
    "--n-gpu-layers",
    "--parallel",
    "--cache-type-k",
    "--cache-type-v",
    "--threads",
    "--batch-size",
    "--ubatch-size",
    "--flash-attn",
    "--reasoning-format",
    "--api-key",
    "--hf-repo",
    "--chat-template",
    "--split-mode",
    "--main-gpu",
}
FLAGS = {"--jinja", "--no-jinja", "--metrics", "--no-mmap", "--mlock", "--no-webui", "--cont-batching", "--embeddings"}
ALIASES = {
    "-m": "--model",
    "-a": "--alias",
    "-c": "--ctx-size",
    "-ngl": "--n-gpu-layers",
    "--gpu-layers": "--n-gpu-layers",
    "-np": "--parallel",
    "-t": "--threads",
    "-fa": "--flash-attn",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
}
BUILD = "6653 (b8a2f7e1)"
LOADING = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'


class Server(engine_http.Server):
    """llama.cpp's routes: while it loads everything but the list of models is 503."""

    thought = "reasoning_content"
    owner = "llamacpp"

    def listening(self) -> bool:
        return True

    def not_yet(self, path: str) -> tuple[str, bytes] | None:
        if not self.engine.ready and path not in ("/v1/models", "/models"):
            return "503 Service Unavailable", LOADING
        return None

    def health(self) -> tuple[str, bytes, str]:
        return "200 OK", b'{"status":"ok"}', "application/json; charset=utf-8"

    def metrics(self) -> str:
        engine = self.engine
        rows = (
            ("prompt_tokens_total", "counter", engine.counters["prompt"]),
            ("tokens_predicted_total", "counter", engine.counters["generated"]),
            ("requests_processing", "gauge", float(engine.active)),
            ("requests_deferred", "gauge", 0.0),
        )
        return "".join(
            f"# HELP llamacpp:{name} {name.replace('_', ' ')}.\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value:g}\n"
            for name, kind, value in rows
        )


@dataclass
class Llama(Program):
    name: str = "llama-server"

    @property
    def served(self) -> list[str]:
        return [str(self.options.get("--alias") or self.model)]

    async def api(self, text: str) -> None:
        found = re.search(r'"(\S+) (\S+) HTTP/1.1" (\d+)', text)
        if found:
            text = f"srv  log_server_r: request: {found[1]} {found[2]} 127.0.0.1 {found[3]}"
        await self.call.err(text + "\n")

    def last_words_in(self, phase: str) -> tuple[str, ...]:
        if phase == "loading":
            return (
                "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 18508.35 MiB on device 0: cudaMalloc failed: out of memory",
                f"llama_model_load_from_file_impl: failed to load model '{self.model}'",
                "main: exiting due to model loading error",
            )
        return ("CUDA error: an illegal memory access was encountered",)

    def parts(self) -> list[Path]:
        """The file, or all parts of a split one. Raises Dies where one is missing."""
        found = re.search(r"-(\d{5})-of-(\d{5})\.gguf$", self.model)
        paths = [self.model]
        if found:
            paths = [
                self.model[: found.start()] + f"-{number:05d}-of-{found[2]}.gguf"
                for number in range(1, int(found[2]) + 1)
            ]
        for path in paths:
            if not self.file(path).is_file():
                raise Dies(
                    f"gguf_init_from_file: failed to open GGUF file '{path}' (No such file or directory)",
                    f"llama_model_load: error loading model: llama_model_loader: failed to load model from {path}",
                    "main: exiting due to model loading error",
                )
        return [self.file(path) for path in paths]

    async def run(self) -> None:
        say = self.call.err
        await say(f"build: {BUILD} with cc (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0 for linux\n")
        await self.phase("starting")
        port, host = int(self.options.get("--port", 8080)), str(self.options.get("--host", "127.0.0.1"))
        if port in self.node.listeners:
            raise Dies(
                f"start: couldn't bind HTTP server socket, hostname: {host}, port: {port}",
                "main: exiting due to HTTP server error",
            )
        self.listen(port, Server(self).serve, host)
        await say("main: binding port with default address family\n")
        await say(f"main: HTTP server is listening, hostname: {host}, port: {port}, http threads: 19\n")
        await say(f"main: loading model\nsrv    load_model: loading model '{self.model}'\n")
        await self.load()
        await say("main: model loaded\n")
        await say("main: chat template, chat_template: {%- if tools %}..., example_format: '<|im_start|>system'\n")
        await say(f"main: server is listening on http://{host}:{port} - starting the main loop\n")
        self.ready = True
        await say("srv  update_slots: all slots are idle\n")

    async def load(self) -> None:
        say, files = self.call.err, self.parts()
        size = sum(path.stat().st_size for path in files) / GIB
        asked = int(self.options.get("--ctx-size", 4096))
        self.max_len = asked or 32768
        cache = self.max_len * 96 / (1 << 20)
        await say(
            f"llama_model_loader: loaded meta data with 36 key-value pairs and 579 tensors from {self.model} (version GGUF V3 "
            "(latest))\n"
        )
        await say(
            "llama_model_loader: - kv   0:                       general.architecture str              = qwen3moe\n"
        )
        await say("load_tensors: loading model tensors, this can take a while... (mmap = true)\n")
        began = time.monotonic()
        for step in range(1, 9):
            await self.pause(5)
            if step == 3:
                await self.phase("loading")
            if size + cache > self.free_gib + size * (step - 1) / 8:
                raise Dies(*self.last_words_in("loading"))
            self.take(size * step / 8)
            self.node.read_files(size / 8)
        await say(f"load_tensors:        CUDA0 model buffer size = {size * 1024:8.2f} MiB\n")
        await say("." * 88 + "\n")
        await say(f"llama_context: n_ctx         = {self.max_len}\n")
        await say(f"llama_kv_cache: size = {cache * 1024:7.2f} MiB ({self.max_len:6d} cells,  48 layers,  1/1 seqs)\n")
        self.kv_tokens = self.max_len
        self.take(size + cache + 0.4)
        await self.pause(2)
        await say(f"srv          init: initializing slots, n_slots = {self.options.get('--parallel', 1)}\n")
        self.created = began


async def serve(call: Call, container: Container | None, words: list[str]) -> int:
    """`llama-server` from beginning to end: its exit code."""
    if words and words[0] in ("--version", "-v"):
        await call.err(f"version: {BUILD}\nbuilt with cc (Ubuntu 13.3.0) 13.3.0 for linux\n")
        return 0
    options: dict[str, Any] = {}
    try:
        options, unknown = parsed(words, VALUED, FLAGS, ALIASES, underscores=True)
        if unknown:
            raise BadOptions(f"error: invalid argument: {unknown[0]}")
    except BadOptions as error:
        await call.err(f"{error}\n")
        return 1
    llama = Llama(call.node, call, container, str(options.get("--model", "models/7B/ggml-model-f16.gguf")), options)
    return await live(llama, f"llama-server --model {llama.model} --port {options.get('--port', 8080)}", llama.run)
