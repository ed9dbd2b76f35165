"""A small program that behaves like `vllm serve` as far as a run can see: its log, its port, its answers. For tests only."""

FAKE_VLLM = r"""#!/usr/bin/env python3
import http.server, json, os, sys, threading, time
args = sys.argv[2:]
port = int(args[args.index("--port") + 1]); name = args[args.index("--served-model-name") + 1] if "--served-model-name" in args else args[0]
pace = float(os.environ.get("FAKE_PACE", "0.1")); shards = int(os.environ.get("FAKE_SHARDS", "8")); dies = os.environ.get("FAKE_DIES", "")
def say(text):
    sys.stdout.write(text + "\n"); sys.stdout.flush()
say("(APIServer pid=1) INFO 11-30 10:00:00 [utils.py:253] vLLM API server version 0.17.1")
for n in range(shards + 1):
    say("(EngineCore_DP0 pid=2) Loading safetensors checkpoint shards: %3d%% Completed | %d/%d [00:%02d<00:00,  1.00it/s]" % (100 * n // shards, n, shards, n))
    mark = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "died")
    if dies.startswith("silently") and n == shards // 2 and not ("once" in dies and os.path.exists(mark)):
        open(mark, "w").close()
        sys.exit(1)
    if dies == "1" and n == shards // 2:
        say("(EngineCore_DP0 pid=2) ERROR 11-30 10:00:01 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 288.00 MiB. GPU 0 has a total capacity of 23.55 GiB of which 100.00 MiB is free.")
        sys.exit(1)
    time.sleep(pace)
say("(EngineCore_DP0 pid=2) INFO 11-30 10:00:02 [default_loader.py:1] Loading weights took 1.00 seconds")
class H(http.server.BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def answer(self, body):
        data = json.dumps(body).encode(); self.send_response(200); self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data))); self.end_headers(); self.wfile.write(data)
    def do_GET(self): self.answer({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "vllm"}]})
    def events(self, said):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for one in (*map(json.dumps, said), "[DONE]"):
            self.wfile.write(("data: " + one + "\n\n").encode())
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["max_tokens"] <= 50:
            message, finish = {"role": "assistant", "content": None, "reasoning": "The user wants one word and I think about it."}, "length"
        else:
            message, finish = {"role": "assistant", "content": "Paris."}, "stop"
        say('(APIServer pid=1) INFO:     127.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK')
        if asked.get("stream"):
            said = [{"choices": [{"index": 0, "delta": message, "finish_reason": finish}]}, {"choices": [], "usage": {"completion_tokens": 3}}]
            return self.events(said)
        self.answer({"id": "x", "object": "chat.completion", "model": name, "choices": [{"index": 0, "message": message, "finish_reason": finish}],
                     "usage": {"prompt_tokens": 9, "completion_tokens": asked["max_tokens"], "total_tokens": 60}})
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), H)
say("(APIServer pid=1) INFO:     Application startup complete.")
server.serve_forever()
"""
