// Loaded before the first paint: the theme that this browser was told to use, else the system's.
(() => {
  const root = document.documentElement;
  root.dataset.scripts = "yes";
  try {
    const kept = localStorage.getItem("theme");
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch { /* storage is off: the system's theme it is */ }
})();
