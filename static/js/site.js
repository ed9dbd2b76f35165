// What every page has: theme switch, copy buttons, dialogs, times in the browser's zone, filtered selects, and the one socket.
import "./times.js";
import "./live.js";

const root = document.documentElement;

function switchTheme() {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* it lasts for this page then */ }
}

function say(text) {
  const toast = document.createElement("div");
  toast.className = "toast";
  toast.setAttribute("role", "status");
  toast.textContent = text;
  document.body.append(toast);
  setTimeout(() => toast.remove(), 2200);
}

async function copy(button) {
  const source = button.dataset.copy ? document.getElementById(button.dataset.copy) : button.parentElement.querySelector("code, pre, textarea");
  const text = button.dataset.text ?? source.value ?? source.textContent;
  try {
    await navigator.clipboard.writeText(text.trim());
    say("Copied");
  } catch {
    // Not a secure page (plain HTTP): select it, so that the keyboard can copy it.
    if (source) getSelection().selectAllChildren(source);
    say("Selected: press Ctrl+C");
  }
}

document.addEventListener("click", (event) => {
  const target = event.target instanceof Element ? event.target : null;
  if (!target) return;
  const copier = target.closest(".copy, [data-copy]");
  if (copier) return void copy(copier);
  if (target.closest("[data-theme-switch]")) return switchTheme();
  const opener = target.closest("[data-dialog]");
  if (opener) {
    const dialog = document.getElementById(opener.dataset.dialog);
    if (dialog) { event.preventDefault(); dialog.showModal(); }
    return;
  }
  if (target.closest("[data-close]")) target.closest("dialog")?.close();
});

// A form that was sent is not sent a second time by an impatient finger.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!(form instanceof HTMLFormElement) || form.method !== "post" || form.hasAttribute("hx-post")) return;
  if (form.dataset.sent) return event.preventDefault();
  form.dataset.sent = "yes";
  setTimeout(() => delete form.dataset.sent, 8000);
});

// Opened from the address (#cancel): show the dialog of that name.
const wanted = location.hash && document.getElementById(location.hash.slice(1));
if (wanted instanceof HTMLDialogElement) wanted.showModal();

// Pieces are replaced while somebody looks at them: what a person folded or unfolded stays so, what is the same is left alone.
const last = new WeakMap();
const folded = new Map(); // id of a <details> -> whether a person opened it
document.addEventListener("click", (event) => {
  const details = event.target instanceof Element && event.target.closest("summary")?.parentElement;
  if (details?.id) folded.set(details.id, !details.open);
});
document.addEventListener("htmx:beforeSwap", (event) => {
  const { target, serverResponse, xhr } = event.detail;
  if (xhr.status === 200 && last.get(target) === serverResponse) { event.detail.shouldSwap = false; return; }
  last.set(target, serverResponse);
});
function refold() {
  for (const [id, open] of folded) {
    const details = document.getElementById(id);
    if (details) details.open = open;
  }
}
document.addEventListener("htmx:afterSwap", refold);
document.addEventListener("htmx:oobAfterSwap", refold);
