// One WebSocket per page. Says what it watches, hears `changed` (a DOM event for htmx) and log lines (for logview.js).
// Missing a message is harmless: fragments also refresh by themselves, and lines are asked for from a cursor.

const FIRST_MS = 500, MOST_MS = 15000, PING_MS = 20000, PONG_MS = 10000, COALESCE_MS = 700;
const SIGNED_OUT = new Set([4401, 4403]);

class Live extends EventTarget {
  state = "idle"; // idle connecting live reconnecting closed
  failures = 0;
  #socket = null;
  #timer = 0;
  #ping = 0;
  #pong = 0;
  #objects = [];
  #follow = null; // () => the message that follows the log from where we stand
  #coalesced = new Map();
  #wasLive = false;

  start(objects) {
    this.#objects = objects;
    if (objects.length) this.#connect();
    addEventListener("online", () => this.now());
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.now(); });
    addEventListener("pagehide", () => this.#socket?.close(1000));
    addEventListener("pageshow", (event) => { if (event.persisted) this.now(); });
  }

  /** Follow a log; `message` is asked again after each reconnection, so that it carries the newest cursor. */
  follow(message) {
    this.#follow = message;
    if (this.state === "live") this.say(message());
    else if (this.state === "idle") this.#connect();
  }

  unfollow() {
    this.#follow = null;
    this.say({ op: "unlog" });
  }

  /** Whether it was sent. */
  say(message) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(message));
    return true;
  }

  /** Connect at once, if we are waiting to. */
  now() {
    if (this.state !== "reconnecting") return;
    clearTimeout(this.#timer);
    this.#connect();
  }

  #become(state) {
    if (state === this.state) return;
    this.state = state;
    document.documentElement.dataset.live = state;
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }

  #connect() {
    clearTimeout(this.#timer);
    if (this.state === "closed") return;
    this.#become(this.failures || this.#wasLive ? "reconnecting" : "connecting");
    let socket;
    try {
      socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/live`);
    } catch {
      return this.#again();
    }
    this.#socket = socket;
    socket.addEventListener("open", () => {
      if (socket !== this.#socket) return;
      const again = this.#wasLive;
      this.#wasLive = true;
      this.say({ op: "watch", objects: this.#objects });
      this.#become("live");
      if (this.#follow) this.say(this.#follow());
      if (again) for (const object of this.#objects) this.#changed(object.split(":")[0], { missed: true });
      this.#keepAlive();
    });
    socket.addEventListener("message", (event) => { if (socket === this.#socket) this.#hear(event.data); });
    socket.addEventListener("close", (event) => {
      if (socket !== this.#socket) return;
      this.#socket = null;
      clearTimeout(this.#ping);
      clearTimeout(this.#pong);
      if (SIGNED_OUT.has(event.code)) return this.#signedOut(event.code);
      this.#again();
    });
  }

  #again() {
    this.failures += 1;
    this.#become("reconnecting");
    this.dispatchEvent(new CustomEvent("failed", { detail: this.failures }));
    const ceiling = Math.min(MOST_MS, FIRST_MS * 2 ** Math.min(this.failures, 6));
    this.#timer = setTimeout(() => this.#connect(), FIRST_MS + Math.random() * (ceiling - FIRST_MS)); // full jitter
  }

  #keepAlive() {
    clearTimeout(this.#ping);
    this.#ping = setTimeout(() => {
      if (!this.say({ op: "ping" })) return;
      this.#pong = setTimeout(() => { // half open: nobody is there any more
        const dead = this.#socket;
        this.#socket = null;
        dead?.close();
        this.#again();
      }, PONG_MS);
      this.#keepAlive();
    }, PING_MS);
  }

  #hear(text) {
    let message;
    try { message = JSON.parse(text); } catch { return; }
    clearTimeout(this.#pong);
    this.failures = 0;
    if (message.type === "changed") this.#changed(message.object, message);
    else if (message.type !== "pong") this.dispatchEvent(new CustomEvent("message", { detail: message }));
  }

  /** `run:changed` on body: at once, then at most one each COALESCE_MS, and never without a last one. */
  #changed(kind, detail) {
    const waiting = this.#coalesced.get(kind);
    if (waiting) { waiting.detail = detail; return; }
    const send = (what) => document.body.dispatchEvent(new CustomEvent(`${kind}:changed`, { detail: what }));
    send(detail);
    const entry = { detail: null };
    this.#coalesced.set(kind, entry);
    setTimeout(() => {
      this.#coalesced.delete(kind);
      if (entry.detail) this.#changed(kind, entry.detail);
    }, COALESCE_MS);
  }

  #signedOut(code) {
    this.#become("closed");
    this.dispatchEvent(new CustomEvent("signed-out"));
    signedOut(code === 4401 ? "You are signed out" : "You are signed out, or your role has changed");
  }
}

/** Say it at the top of the page, with the way back in. */
export function signedOut(words) {
  if (document.getElementById("signed-out")) return;
  const banner = document.createElement("div");
  banner.className = "banner";
  banner.id = "signed-out";
  banner.dataset.status = "bad";
  banner.setAttribute("role", "alert");
  const said = document.createElement("div");
  said.textContent = `${words}. This page no longer updates.`;
  const link = document.createElement("a");
  link.className = "button";
  link.href = `/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`;
  link.textContent = "Sign in";
  banner.append(said, link);
  document.getElementById("main")?.prepend(banner);
}

export const live = new Live();
live.start((document.body.dataset.watch || "").split(/\s+/).filter(Boolean).map((name) => (name.includes(":") ? name : `${name}:0`)));
