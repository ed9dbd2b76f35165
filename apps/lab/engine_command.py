"""A pretend server of nobody's make, with an OpenAI-compatible API: `openai-server --model NAME --port N [--load SECONDS]
[--note=TEXT …]`. It prints the notes and the variables NOTE… as it got them."""

from __future__ import annotations

from dataclasses import dataclass

from apps.lab import engine_http
from apps.lab.call import Call
from apps.lab.engine_other import BadOptions, Dies, Program, live, parsed
from apps.lab.world import Container


class Server(engine_http.Server):
    owner = "acme"


@dataclass
class Plain(Program):
    name: str = "openai-server"
    notes: tuple[str, ...] = ()

    async def run(self) -> None:
        port = int(self.options.get("--port", 8000))
        await self.call.out(f"openai-server 1.4: loading {self.model}\n")
        for note in self.notes:
            await self.call.out(f"note {note}\n")
        for name in sorted(self.call.environment):
            if name.startswith("NOTE"):
                await self.call.out(f"{name}={self.call.environment[name]}\n")
        await self.phase("loading")
        if port in self.node.listeners:
            raise Dies(f"openai-server: port {port} is in use")
        for step in range(1, 5):
            await self.pause(float(self.options.get("--load", 20)) / 4)
            self.take(2.0 * step)
            await self.call.out(f"loaded {step * 25} %\n")
        self.listen(port, Server(self).serve, str(self.options.get("--host", "0.0.0.0")))
        self.ready = True
        await self.call.out(f"serving on port {port}\n")


async def serve(call: Call, container: Container | None, words: list[str]) -> int:
    notes = tuple(word.removeprefix("--note=") for word in words if word.startswith("--note="))
    words = [word for word in words if not word.startswith("--note=")]
    try:
        options, unknown = parsed(words, {"--model", "--port", "--host", "--load"}, set(), {})
        if unknown:
            raise BadOptions(f"unknown option {unknown[0]}")
    except BadOptions as error:
        return await call.fail(f"openai-server: {error}", 2)
    made = Plain(call.node, call, container, str(options.get("--model", "model")), options, notes=notes)
    return await live(made, f"openai-server --model {made.model}", made.run)
