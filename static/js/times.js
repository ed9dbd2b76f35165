// Times are stored in UTC and said in the browser's zone; relative ones move on, the exact one stands in the title.
// The server says whole seconds: what is up to 2 s ahead of us has just happened.
const skew = Number(document.documentElement.dataset.now || 0) * 1000 - Date.now(); // the server's clock counts
const exact = new Intl.DateTimeFormat("en-CA", { dateStyle: "short", timeStyle: "medium", hourCycle: "h23" });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat("en-CA", { month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** Seconds in words, the same as apps/pages/words.py says them. */
export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return s % 60 && s < 1200 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.floor(s / 60)} min`;
  if (s < 86400) return Math.floor((s % 3600) / 60) ? `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min` : `${Math.floor(s / 3600)} h`;
  const days = Math.floor(s / 86400);
  return `${days} ${days === 1 ? "day" : "days"}`;
}

export function now() { return Date.now() + skew; }

function tell(element) {
  const at = new Date(element.dateTime);
  if (Number.isNaN(at.getTime())) return;
  element.title = `${exact.format(at)} ${zone}`;
  const age = (now() - at) / 1000;
  const form = element.dataset.time;
  if (form === "ago") element.textContent = age < -2 ? `in ${duration(-age)}` : `${duration(age)} ago`;
  else if (form === "age") element.textContent = duration(age);
  else if (form === "clock") element.textContent = Math.abs(age) < 64800 ? clock.format(at) : day.format(at);
  else if (form === "exact") element.textContent = exact.format(at);
}

export function tellAll(within = document) {
  for (const element of within.querySelectorAll("time[data-time]")) tell(element);
}

tellAll();
setInterval(() => { if (!document.hidden) tellAll(); }, 1000);
document.addEventListener("htmx:load", (event) => tellAll(event.detail.elt));
document.addEventListener("visibilitychange", () => { if (!document.hidden) tellAll(); });
