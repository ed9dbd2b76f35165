// Terminal colours as classes. Everything else that a terminal would obey is dropped; text only ever becomes textContent.
/* eslint-disable no-control-regex */
const OTHER = /\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[PX^_][^\x1b]*(?:\x1b\\)?|\x1b\[[0-?]*[ -/]*[@-ln-~]|\x1b[ -/]*[0-Z\\^-~]|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]/g;
const COLOUR = /\x1b\[([0-9;:]*)m/g;
const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

/** The text without any escape sequence. */
export function plain(text) {
  return text.replace(OTHER, "").replace(COLOUR, "").replaceAll("\x1b", "");
}

/** Put `text` into `element`, coloured. */
export function paint(element, text) {
  if (!text.includes("\x1b")) { element.textContent = text.replace(OTHER, ""); return; }
  const clean = text.replace(OTHER, "");
  const parts = [];
  let colour = "", bold = false, dim = false, at = 0;
  const put = (piece) => {
    if (!piece) return;
    piece = piece.replaceAll("\x1b", "");
    if (!colour && !bold && !dim) { parts.push(piece); return; }
    const span = document.createElement("span");
    if (colour) span.dataset.colour = colour;
    if (bold) span.dataset.bold = "";
    if (dim) span.dataset.dim = "";
    span.textContent = piece;
    parts.push(span);
  };
  for (const found of clean.matchAll(COLOUR)) {
    put(clean.slice(at, found.index));
    at = found.index + found[0].length;
    const codes = found[1].split(/[;:]/).map(Number);
    for (let i = 0; i < codes.length; i += 1) {
      const code = codes[i];
      if (code === 0) { colour = ""; bold = dim = false; }
      else if (code === 1) bold = true;
      else if (code === 2) dim = true;
      else if (code === 22) bold = dim = false;
      else if (code === 39) colour = "";
      else if (code >= 30 && code <= 37) colour = NAMES[code - 30];
      else if (code >= 90 && code <= 97) colour = NAMES[code - 90];
      else if (code === 38 || code === 48) i += codes[i + 1] === 5 ? 2 : 4; // 256 and true colours: the text's own is fine
    }
  }
  put(clean.slice(at));
  element.replaceChildren(...parts);
}
