// The log pane. Keeps a window of lines, draws at most MOST_ROWS of them, follows only while at the bottom.
// Lines come by the page's socket; when it can't connect, by polling GET lines from the same cursor. The badge says which.
import { live, signedOut } from "./live.js";
import { paint, plain } from "./ansi.js";

const LONGEST = 65536, MOST_ROWS = 400, KEPT = 20000, PAGE = 500, POLL_MS = 1500, GIVE_UP_MS = 2500, REPLY_MS = 8000, FILL_PAGES = 4;
const PACE_MS = 80, FOLLOWED_ROWS = 40; // between two drawings, and rows above the visible ones, while it follows
const MOST_PX = 8e6, SETTLE_MS = 120; // of the whole log's height; until a scrollbar that is dragged rests
const LEVELS = [[/\b(ERROR|CRITICAL|FATAL|Traceback|Error:)\b|^E\d{4} /, "bad"], [/\b(WARN|WARNING)\b/, "warn"]];
const ORIGIN = /^(?:\([\w.:-]+ (?:pid|ip)=[^)]{1,60}\) ){1,3}/;
const BADGES = {
  connecting: ["off", "connecting"], live: ["ok", "live"], reconnecting: ["warn", "reconnecting"],
  polling: ["warn", "polling"], ended: ["off", "ended"], closed: ["bad", "signed out"],
};
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const exact = new Intl.DateTimeFormat("en-CA", { dateStyle: "short", timeStyle: "medium", hourCycle: "h23" });

let lastTime = "", lastClock = "";

/** Lines that were stored together share their time, and formatting it is slow. */
function clockOf(text) {
  if (text !== lastTime) {
    const at = new Date(text);
    [lastTime, lastClock] = [text, Number.isNaN(at.getTime()) ? "" : clock.format(at)];
  }
  return lastClock;
}

/** The lines that are held, in order. A redraw of a stream (after \r) takes the place of the line before it; a continued one is
 *  the rest of a line whose beginning was already shown. */
class Lines {
  list = [];
  last = 0;
  byNumber = new Map();
  newest = new Map(); // stream -> its last line

  get first() { return this.list[0]?.n ?? 0; }

  clear() { this.list = []; this.last = 0; this.byNumber.clear(); this.newest.clear(); }

  /** Returns how many lines are new. */
  append(lines) {
    let fresh = 0;
    for (const line of lines) {
      if (line.n <= this.last) continue; // held, or collapsed meanwhile
      this.last = line.n;
      const stream = streamOf(line);
      const before = this.newest.get(stream);
      if (line.continued && before && !before.gone && before.text.length < LONGEST) {
        before.text += line.text;
        before.row = null;
        this.byNumber.set(line.n, before);
        continue;
      }
      if (line.redraw && before && !before.gone) this.#remove(before);
      this.#add(line, stream);
      fresh += 1;
    }
    return fresh;
  }

  /** Earlier lines, before the first one that is held. */
  prepend(lines) {
    const older = new Lines();
    older.append(lines.filter((line) => line.n < this.first || !this.list.length));
    const heads = new Map(); // a redraw at our beginning replaces the older line of its stream
    for (const line of this.list) if (!heads.has(streamOf(line))) heads.set(streamOf(line), line);
    for (const [stream, head] of heads) {
      const before = older.newest.get(stream);
      if (head.redraw && before) older.#remove(before);
    }
    this.list = [...older.list, ...this.list];
    this.last = Math.max(this.last, older.last);
    for (const line of older.list) this.byNumber.set(line.n, line);
    for (const [stream, line] of older.newest) if (!this.newest.has(stream)) this.newest.set(stream, line);
    return older.list.length;
  }

  trim(most) {
    const extra = this.list.length - most;
    if (extra <= 0) return 0;
    for (const line of this.list.splice(0, extra)) { line.gone = true; this.byNumber.delete(line.n); }
    return extra;
  }

  /** Keep the first `most`; the rest is asked for again when somebody comes there. */
  trimEnd(most) {
    if (this.list.length <= most) return;
    for (const line of this.list.splice(most)) { line.gone = true; this.byNumber.delete(line.n); }
    this.last = this.list.at(-1).n;
    this.newest.clear();
    for (const line of this.list) this.newest.set(streamOf(line), line);
  }

  #add(line, stream) {
    this.list.push(line);
    this.byNumber.set(line.n, line);
    this.newest.set(stream, line);
  }

  #remove(line) {
    line.gone = true;
    this.byNumber.delete(line.n);
    const at = this.list.lastIndexOf(line);
    if (at >= 0) this.list.splice(at, 1);
  }
}

function streamOf(line) { return `${line.step}|${line.stream}|${line.node}|${line.rank}`; }

class LogView {
  constructor(pane) {
    this.pane = pane;
    this.run = Number(pane.dataset.run);
    this.lines = new Lines();
    this.shown = [];
    this.filter = "";
    this.rank = null;
    this.step = null;
    this.notes = true; // our own lines among those of the jobs
    this.follow = true;
    this.attached = true; // our last line is the newest, or what comes next joins it
    this.cursor = null; // null: begin with the tail
    this.unseen = 0;
    this.ended = false;
    this.total = 0;
    this.fills = 0;
    this.polling = 0;
    this.from = this.to = 0;
    this.find = (name) => pane.querySelector(`[data-log="${name}"]`);
    this.view = this.find("view");
    this.above = this.find("above");
    this.rows = this.find("rows");
    this.below = this.find("below");
    this.badge = this.find("badge");
    this.pill = this.find("pill");
    this.#preferences();
    this.#listen();
    const line = /^#L(\d+)$/.exec(location.hash);
    this.#restart(line ? Number(line[1]) : null);
  }

  // where lines come from

  #restart(line = null) {
    this.lines.clear();
    this.shown = [];
    this.unseen = this.fills = 0;
    this.ended = false;
    this.cursor = null;
    this.attached = line === null;
    this.follow = line === null;
    this.loading = null;
    this.epoch = (this.epoch ?? 0) + 1;
    this.find("download").href = `/runs/${this.run}/log${this.step === null ? "" : `?step=${encodeURIComponent(this.step)}`}`;
    this.#draw();
    if (line === null) this.#subscribe();
    else this.jump(line);
  }

  #subscribe() {
    live.follow(() => ({ op: "log", run: this.run, after: this.cursor, rank: this.rank, step: this.step }));
    if (live.state === "reconnecting" && live.failures > 0) this.#poll();
    else if (live.state !== "live") setTimeout(() => { if (live.state !== "live") this.#poll(); }, GIVE_UP_MS);
    this.#tell();
  }

  #hear(message) {
    if (message.run !== this.run) return;
    if (message.type === "page") return this.loading?.take(message);
    if (!this.attached) return;
    this.#stopPolling();
    if (message.type === "snapshot") {
      if (this.lines.list.length) this.lines.clear();
      this.cursor = null; // also one behind the end, after an older backup was restored
    }
    if (message.type === "snapshot" || message.type === "lines") this.#take(message);
  }

  #take(answer) {
    const fresh = this.lines.append(answer.lines);
    this.cursor = Math.max(this.cursor ?? 0, answer.lines.at(-1)?.n ?? 0);
    this.total = answer.total ?? this.total;
    this.ended = Boolean(answer.ended);
    if (this.follow) this.lines.trim(KEPT);
    else this.unseen += fresh;
    if (!this.follow && this.lines.list.length > KEPT * 2) this.#detach(); // somebody reads far above: stop collecting
    this.#refilter();
    this.#draw();
    this.#tell();
  }

  #detach() {
    this.attached = false;
    live.unfollow();
    this.#stopPolling();
    this.#tell();
  }

  address(words) {
    const query = new URLSearchParams(words);
    if (this.rank !== null) query.set("rank", this.rank);
    if (this.step !== null) query.set("step", this.step);
    return `/runs/${this.run}/lines?${query}`;
  }

  async #get(words) {
    // Marked as asked for by the page itself: it must not keep a forgotten session open.
    const answer = await fetch(this.address(words), { headers: { Accept: "application/json", "HX-Request": "true" }, credentials: "same-origin" });
    if (answer.redirected || answer.headers.has("HX-Redirect") || answer.status === 401 || answer.status === 403) {
      signedOut("You are signed out");
      throw new Error("signed out");
    }
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    return answer.json();
  }

  async #poll() {
    if (this.polling || !this.attached || live.state === "live" || live.state === "closed") return;
    const mine = this.polling = this.epoch;
    let failed = 0;
    while (this.polling === mine && this.attached && live.state !== "live") {
      try {
        const answer = await this.#get(this.cursor === null ? { tail: PAGE } : { after: this.cursor, limit: 1000 });
        if (this.polling !== mine) return;
        failed = 0;
        this.heardByPolling = true;
        this.#take(answer);
        if (answer.ended && !answer.lines.length) break;
        if (answer.lines.length >= 1000) continue;
      } catch {
        failed += 1;
        this.heardByPolling = false;
        this.#tell();
      }
      await new Promise((resolve) => setTimeout(resolve, POLL_MS * Math.min(failed + 1, 8)));
    }
    if (this.polling === mine) this.#stopPolling();
  }

  #stopPolling() {
    this.polling = 0;
    this.heardByPolling = false;
  }

  /** Some lines, once: by the socket when there is one, else by HTTP. */
  async #page(words) {
    const wanted = { after: null, before: null, limit: PAGE, ...words };
    if (live.state === "live" && live.say({ op: "page", run: this.run, rank: this.rank, step: this.step, ...wanted })) {
      const answer = await new Promise((resolve) => {
        const timer = setTimeout(() => resolve(null), REPLY_MS);
        this.loading = {
          take: (message) => {
            if (message.after === wanted.after && message.before === wanted.before) { clearTimeout(timer); resolve(message); }
          },
        };
      });
      if (answer) return answer;
    }
    return this.#get(Object.fromEntries(Object.entries(wanted).filter(([, value]) => value !== null)));
  }

  async #load(words, use) {
    if (this.busy) return;
    const epoch = this.epoch;
    this.busy = true;
    try {
      const answer = await this.#page(words);
      if (epoch === this.epoch) use(answer);
    } catch { /* the badge says how things are; the next scroll tries again */ } finally {
      this.busy = false;
      this.loading = null;
    }
  }

  #earlier() {
    const first = this.lines.first;
    if (first <= 1 || this.exhausted === this.epoch) return;
    this.#load({ before: first }, (answer) => {
      const anchor = this.#anchor();
      if (!answer.lines.length) this.exhausted = this.epoch;
      this.lines.prepend(answer.lines);
      if (this.lines.list.length > KEPT * 2) {
        if (this.attached) this.#detach();
        this.lines.trimEnd(KEPT);
      }
      this.#refilter();
      this.#draw(anchor);
    });
  }

  #later() {
    if (this.attached) return;
    this.#load({ after: this.lines.last }, (answer) => {
      const anchor = this.#anchor();
      this.lines.append(answer.lines);
      this.lines.trim(KEPT);
      this.total = answer.total ?? this.total;
      if (answer.lines.length === 0 || answer.ended) {
        this.attached = true;
        this.cursor = this.lines.last;
        this.#subscribe();
      }
      this.#refilter();
      this.#draw(anchor);
    });
  }

  /** Show line `number`, with its neighbours. */
  jump(number) {
    this.follow = false;
    this.marked = number;
    if (this.lines.byNumber.has(number)) return this.#showLine(number);
    this.#around(number, () => this.#showLine(number));
  }

  /** Hold the lines about `number` instead of those that are held. */
  #around(number, then) {
    this.#detach();
    this.epoch += 1;
    this.busy = false;
    this.#load({ after: Math.max(0, number - 120) }, (answer) => {
      this.lines.clear();
      this.lines.append(answer.lines);
      this.total = answer.total ?? this.total;
      this.exhausted = null;
      this.#refilter();
      then();
    });
  }

  /** The scrollbar was dragged to where no lines are held: show those about that place once it rests. */
  #seek() {
    clearTimeout(this.seeking);
    this.seeking = setTimeout(() => {
      const { above, below } = this.#unheld();
      const { scrollTop, scrollHeight, clientHeight } = this.view;
      const over = scrollTop + clientHeight < above, under = scrollTop > scrollHeight - below;
      if (!over && !under) return;
      const beyond = under ? this.lines.last + (scrollTop - (scrollHeight - below)) / this.scale : scrollTop / this.scale;
      const number = Math.max(1, Math.min(this.total, Math.round(beyond) + 1));
      this.#around(number, () => {
        const at = Math.max(0, this.shown.findIndex((line) => line.n >= number));
        this.from = Math.max(0, at - 100);
        this.#draw({ line: this.shown[at], offset: 0 });
      });
    }, SETTLE_MS);
  }

  /** Pixels of the lines before and after those that are held, by their numbers; 0 where numbers say nothing. */
  #unheld() {
    if (this.rank !== null || this.step !== null || this.filter || !this.notes || !this.lines.list.length) return { above: 0, below: 0 };
    this.scale = Math.min(this.rowHeight, MOST_PX / Math.max(1, this.total));
    return {
      above: Math.max(0, this.lines.first - 1) * this.scale,
      below: this.attached ? 0 : Math.max(0, this.total - this.lines.last) * this.scale,
    };
  }

  #showLine(number) {
    let at = this.shown.findIndex((line) => line.n >= number);
    if (at < 0) at = this.shown.length - 1;
    this.from = Math.max(0, at - 100);
    this.#draw({ line: this.shown[at], offset: this.view.clientHeight / 3 });
  }

  newest() {
    if (!this.attached) return this.#restart();
    this.follow = true;
    this.unseen = 0;
    this.#draw();
    this.#tell();
  }

  // what is drawn

  #refilter() {
    const wanted = this.filter.toLowerCase();
    this.shown = !wanted && this.notes ? this.lines.list
      : this.lines.list.filter((line) => (this.notes || line.stream !== "note") && line.text.toLowerCase().includes(wanted));
  }

  #anchor() {
    const top = this.view.scrollTop - this.rows.offsetTop; // a row's own place is counted from where the rows begin
    for (const row of this.rows.children) {
      if (row.offsetTop + row.offsetHeight > top) return { line: row.line, offset: row.offsetTop - top };
    }
    return null;
  }

  #draw(anchor = null) {
    if (anchor) this.wantedAnchor = anchor;
    if (this.drawing) return;
    if (document.hidden) { this.stale = true; return; }
    this.drawing = true;
    const draw = () => { this.drawing = false; this.drawnAt = performance.now(); this.#drawNow(); };
    const wait = this.follow ? PACE_MS - (performance.now() - (this.drawnAt ?? 0)) : 0; // nobody reads faster than that
    if (wait > 0) setTimeout(() => requestAnimationFrame(draw), wait);
    else requestAnimationFrame(draw);
  }

  get rowHeight() { return this.average || 19; }

  #drawNow() {
    const anchor = this.wantedAnchor ?? (this.follow ? null : this.#anchor());
    this.wantedAnchor = null;
    const count = this.shown.length;
    const spare = this.follow ? FOLLOWED_ROWS : 160;
    const room = Math.min(MOST_ROWS, Math.ceil(this.view.clientHeight / this.rowHeight) + spare);
    if (this.follow) this.from = Math.max(0, count - room);
    else if (anchor?.line) {
      const at = this.#indexOf(anchor.line);
      if (at < this.from + 40 || at > this.to - 60) this.from = Math.max(0, at - 80);
    }
    this.from = Math.max(0, Math.min(this.from, count - 1));
    this.to = Math.min(count, this.from + room);
    const rows = [];
    for (let i = this.from; i < this.to; i += 1) rows.push(this.#row(this.shown[i]));
    this.rows.replaceChildren(...rows);
    if (rows.length) this.average = this.rows.offsetHeight / rows.length;
    const unheld = this.#unheld();
    this.above.style.height = `${unheld.above + this.from * this.rowHeight}px`;
    this.below.style.height = `${(count - this.to) * this.rowHeight + unheld.below}px`;
    if (this.follow) this.view.scrollTop = this.view.scrollHeight;
    else if (anchor?.line?.row?.isConnected) this.view.scrollTop = this.rows.offsetTop + anchor.line.row.offsetTop - anchor.offset;
    this.find("empty").hidden = count > 0;
    this.find("empty").textContent = this.filter && this.lines.list.length ? "No line of these holds the filter. The search looks at the whole log." : this.ended ? "Nothing was printed." : "No lines yet.";
    if (this.rows.offsetHeight < this.view.clientHeight && this.lines.first > 1 && this.fills < FILL_PAGES && !this.filter) {
      this.fills += 1; // redraws collapsed to less than a screen
      this.#earlier();
    }
  }

  #indexOf(line) {
    let low = 0, high = this.shown.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.shown[middle].n < line.n) low = middle + 1; else high = middle;
    }
    return low;
  }

  /* What its tab calls a rank: of several services their names. */
  rankName(rank) {
    this.names ??= new Map([...this.find("tabs").querySelectorAll("[data-rank]")].map((tab) => [Number(tab.dataset.rank), tab.textContent.trim()]));
    return this.names.get(rank) ?? `rank ${rank}`;
  }

  #row(line) {
    if (line.row && line.row.dataset.marked === String(this.marked === line.n)) return line.row;
    const row = document.createElement("div");
    row.className = "line";
    row.line = line;
    row.dataset.n = line.n;
    row.dataset.marked = String(this.marked === line.n);
    const number = document.createElement("a");
    number.className = "line-n";
    number.href = `#L${line.n}`;
    number.textContent = String(line.n).replace(/\B(?=(\d{3})+$)/g, " ");
    number.tabIndex = -1;
    const time = document.createElement("time");
    time.dateTime = line.time;
    time.textContent = clockOf(line.time);
    const who = document.createElement("span");
    who.className = "line-who";
    who.textContent = line.rank !== null && line.rank !== undefined ? this.rankName(line.rank) : line.node || "sparkweb";
    who.title = [line.node, line.step, line.stream].filter(Boolean).join(" · ");
    const text = document.createElement("span");
    text.className = "line-text";
    const origin = ORIGIN.exec(line.text)?.[0];
    if (line.gap) row.append(this.#gap(line.gap));
    if (origin) { // which process said it: kept, but it shall not hide what was said
      const said = document.createElement("span");
      said.className = "line-origin";
      said.textContent = origin;
      said.title = origin;
      const rest = document.createElement("span");
      paint(rest, line.text.slice(origin.length));
      text.append(said, rest);
    } else paint(text, line.text);
    const level = line.stream === "note" ? "note" : LEVELS.find(([pattern]) => pattern.test(line.text.slice(0, 400)))?.[1];
    if (level) row.dataset.level = level;
    row.append(number, time, who, text);
    line.row = row;
    return row;
  }

  #gap({ bytes, lines }) {
    const said = document.createElement("p");
    said.className = "line-gap";
    said.textContent = `${lines.toLocaleString("en")} lines (${(bytes / 1048576).toFixed(1)} MiB) of this output are not kept here: only the beginning and the end of a long one are. The job is not affected.`;
    return said;
  }

  // what a person does

  #listen() {
    live.addEventListener("message", (event) => this.#hear(event.detail));
    live.addEventListener("state", () => { if (live.state === "live") this.#stopPolling(); this.#tell(); });
    live.addEventListener("failed", () => this.#poll());
    live.addEventListener("signed-out", () => this.#tell());
    document.addEventListener("visibilitychange", () => { if (!document.hidden && this.stale) { this.stale = false; this.#draw(); } });
    this.view.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    new ResizeObserver(() => this.#draw()).observe(this.view);
    this.rows.addEventListener("pointerover", ({ target }) => {
      if (target.tagName === "TIME" && !target.title && target.textContent) target.title = exact.format(new Date(target.dateTime));
    });
    this.pill.addEventListener("click", () => this.newest());
    this.find("tabs").addEventListener("click", (event) => {
      const tab = event.target.closest("button");
      if (tab) this.choose(tab.dataset.rank === undefined ? null : Number(tab.dataset.rank), tab.dataset.step ?? null);
    });
    this.find("step")?.addEventListener("change", (event) => this.choose(null, event.target.value || null));
    this.find("copy").addEventListener("click", () => this.copy());
    this.find("filter").addEventListener("input", (event) => { this.filter = event.target.value; this.#refilter(); this.#draw(); });
    this.find("search").addEventListener("submit", (event) => { event.preventDefault(); this.search(event.target.elements.q.value); });
    addEventListener("hashchange", () => {
      const line = /^#L(\d+)$/.exec(location.hash);
      if (line) this.jump(Number(line[1]));
    });
    document.addEventListener("keydown", (event) => this.#key(event));
    document.addEventListener("click", (event) => {
      const stepper = event.target.closest?.("[data-log-step]");
      if (stepper) {
        this.pane.scrollIntoView({ block: "nearest" });
        this.choose(null, stepper.dataset.logStep);
        return;
      }
      const finder = event.target.closest?.("[data-log-find]");
      if (!finder) return;
      event.preventDefault();
      this.pane.scrollIntoView({ block: "nearest" });
      this.search(finder.dataset.logFind);
    });
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.view;
    const gap = scrollHeight - scrollTop - clientHeight;
    const atBottom = gap < 6 && this.attached;
    if (this.follow && gap > 40) this.follow = false;
    else if (!this.follow && atBottom && this.to >= this.shown.length) { this.follow = true; this.unseen = 0; }
    this.#tell();
    if (this.follow) return;
    const unheld = this.#unheld();
    if (scrollTop + clientHeight < unheld.above || scrollTop > scrollHeight - unheld.below) return this.#seek();
    clearTimeout(this.seeking);
    const top = this.rows.offsetTop, bottom = top + this.rows.offsetHeight;
    if ((scrollTop < top + 200 && this.from > 0) || (scrollTop + clientHeight > bottom - 200 && this.to < this.shown.length)) {
      const inside = scrollTop >= top && scrollTop < bottom;
      const at = Math.max(0, Math.min(this.shown.length - 1, Math.floor((scrollTop - unheld.above) / this.rowHeight)));
      if (!inside) this.from = Math.max(0, at - 80);
      this.#draw(inside ? this.#anchor() : { line: this.shown[at], offset: 0 });
    }
    if (scrollTop < unheld.above + 300 && this.from === 0) this.#earlier();
    if (gap < unheld.below + 300 && this.to >= this.shown.length) this.#later();
  }

  choose(rank, step) {
    this.rank = rank;
    this.step = step;
    for (const tab of this.find("tabs").querySelectorAll("button")) {
      const its = tab.dataset.rank === undefined ? null : Number(tab.dataset.rank);
      tab.setAttribute("aria-selected", String(step === null && its === rank));
    }
    const steps = this.find("step");
    if (steps) steps.value = step ?? "";
    this.marked = null;
    this.exhausted = null;
    this.#stopPolling();
    this.#restart();
  }

  async search(text) {
    const box = this.find("found");
    const input = this.find("search").elements.q;
    if (input.value !== text) input.value = text;
    if (!text.trim()) { box.hidden = true; return; }
    const said = document.createElement("p");
    said.setAttribute("role", "status");
    const list = document.createElement("ol");
    box.replaceChildren(said, list);
    box.hidden = false;
    await this.#searchOn(text, 0, said, list, 0);
  }

  /** Hits behind line `after` into `list`; where the server stopped, a button goes on from there. */
  async #searchOn(text, after, said, list, known) {
    said.textContent = known ? `${known} lines so far, searching on…` : "Searching…";
    const query = new URLSearchParams({ q: plain(text), context: 1, after });
    if (this.rank !== null) query.set("rank", this.rank);
    if (this.step !== null) query.set("step", this.step);
    try {
      const answer = await fetch(`/runs/${this.run}/search?${query}`, { headers: { Accept: "application/json" } });
      const body = await answer.json();
      if (!answer.ok) throw new Error(body.detail);
      const told = new Set(body.lines.map((line) => line.n)); // each line once: as a hit, else beside the first that it stands by
      list.append(...body.lines.map((line) => this.#hit(line, plain(text), told)));
      const count = known + body.lines.length;
      const lines = `${count}${body.more ? " or more" : ""} ${count === 1 && !body.more ? "line holds" : "lines hold"}`;
      const where = this.rank !== null ? ` of rank ${this.rank}` : this.step !== null ? " of this step" : "";
      said.textContent = count || body.more ? `${lines} “${text}”${where}` : `No line${where} holds “${text}”`;
      if (body.next !== null) said.append(" · ", this.#link(`search on from line ${body.next.toLocaleString("en")}`, () => this.#searchOn(text, body.next, said, list, count)));
    } catch (problem) {
      said.textContent = `The search did not work${problem?.message ? `: ${problem.message}` : ""}. Try again.`;
    }
    said.append(" · ", this.#link("close", () => { this.find("found").hidden = true; }));
  }

  #link(words, act) {
    const made = document.createElement("button");
    made.className = "link";
    made.type = "button";
    made.textContent = words;
    made.addEventListener("click", act);
    return made;
  }

  #hit(line, text, told) {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = `#L${line.n}`;
    const row = (one, kind) => {
      const made = document.createElement("span");
      made.className = kind;
      const words = plain(one.text).replace(ORIGIN, "");
      const at = words.toLowerCase().indexOf(text.toLowerCase());
      made.textContent = `${one.n}  ${at > 24 ? `…${words.slice(at - 16)}` : words}`;
      made.title = words;
      return made;
    };
    const around = (lines) => (lines ?? []).filter((one) => !told.has(one.n) && told.add(one.n)).map((one) => row(one, "found-around"));
    link.append(...around(line.before), row(line, "found-hit"), ...around(line.following));
    link.addEventListener("click", () => { if (location.hash === `#L${line.n}`) this.jump(line.n); });
    item.append(link);
    return item;
  }

  async copy() {
    const text = this.shown.map((line) => plain(line.text)).join("\n");
    const button = this.find("copy"), words = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = `copied ${this.shown.length.toLocaleString("en")} lines`;
    } catch { // not a secure page (plain HTTP): select what is drawn, so that the keyboard can copy it
      getSelection().selectAllChildren(this.rows);
      button.textContent = "selected: Ctrl+C";
    }
    setTimeout(() => { button.textContent = words; }, 2500);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select, dialog")) {
      if (event.key === "Escape" && event.target.closest?.("[data-log]")) { event.target.blur(); this.find("found").hidden = true; }
      return;
    }
    if (event.key === "f") {
      if (this.follow) { this.follow = false; this.#tell(); } else this.newest();
    } else if (event.key === "/") {
      event.preventDefault();
      this.find("search").elements.q.focus();
    }
  }

  #preferences() {
    for (const name of ["wrap", "times", "notes"]) {
      const button = this.find(name);
      let on = name !== "wrap";
      try { on = JSON.parse(localStorage.getItem(`log-${name}`) ?? String(on)); } catch { /* the default then */ }
      const apply = () => { button.setAttribute("aria-pressed", String(on)); this.pane.dataset[name] = on ? "yes" : "no"; this.average = 0; if (name === "notes") { this.notes = on; this.#refilter(); } };
      button.addEventListener("click", () => {
        on = !on;
        try { localStorage.setItem(`log-${name}`, String(on)); } catch { /* for this page only */ }
        const anchor = this.#anchor();
        apply();
        this.#draw(anchor);
      });
      apply();
    }
  }

  get state() {
    if (live.state === "closed") return "closed";
    if (this.ended && this.attached) return "ended";
    if (live.state === "live") return "live";
    if (this.polling && this.heardByPolling) return "polling";
    return live.state === "reconnecting" ? "reconnecting" : "connecting";
  }

  #tell() {
    const [tone, words] = BADGES[this.state];
    if (this.badge.dataset.state !== this.state) {
      this.badge.dataset.state = this.state;
      this.badge.dataset.status = tone;
      this.badge.querySelector("span").textContent = words;
    }
    this.pill.textContent = !this.attached ? "To the newest lines" : this.follow ? "Following · press f to stop"
      : this.unseen ? `${this.unseen.toLocaleString("en")} new ${this.unseen === 1 ? "line" : "lines"}` : "Follow · press f";
    this.pill.dataset.follow = String(this.follow);
    this.pill.hidden = this.ended && this.follow;
  }
}

for (const pane of document.querySelectorAll("[data-log-pane]")) new LogView(pane);
