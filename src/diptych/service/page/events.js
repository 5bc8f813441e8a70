// Events of the page: typing, dropping, pasting, choosing, clicking, going back.

import { by } from "./dom.js";
import { grow } from "./query.js";
import { t } from "./strings.js";

const plainClick = (event) =>
  event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;

/** Take files: several to add them, or the first one that can be a query; return whether there is any. */
function takeFiles(files, act) {
  const all = [...(files ?? [])];
  if (all.length > 1 && act.files(all)) return true;
  const file = all.find((each) => act.accepts(each));
  if (file) act.file(file);
  return Boolean(file);
}

function typing(act, delay) {
  const field = by("q");
  let timer = 0;
  const now = (done) => {
    clearTimeout(timer);
    if (field.value.trim()) act.typed(field.value, done);
    else act.cleared();
  };
  field.addEventListener("input", () => {
    by("clear").hidden = field.value === "";
    grow(field);
    clearTimeout(timer);
    timer = setTimeout(now, delay, false);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      now(true);
    }
  });
  by("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    now(true);
  });
  // The panel changes its width when results arrive, and then the text wraps elsewhere.
  let width = 0;
  new ResizeObserver(([seen]) => {
    if (Math.abs(seen.contentRect.width - width) < 1) return;
    width = seen.contentRect.width;
    grow(field);
  }).observe(field);
  by("clear").addEventListener("click", () => {
    field.value = "";
    act.cleared();
    field.focus();
  });
  document.addEventListener("keydown", (event) => {
    const busy = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.key === "/" && !busy && !event.metaKey && !event.ctrlKey) {
      event.preventDefault();
      field.focus();
    }
  });
}

function picking(act) {
  by("drop").addEventListener("click", (event) => {
    if (event.target.id === "choose") by("file").click();
  });
  by("drop").addEventListener("submit", (event) => {
    event.preventDefault();
    act.input(by("input").value);
  });
  by("file").addEventListener("change", (event) => {
    const [file, ...others] = event.target.files;
    if (file && !(others.length && act.files([file, ...others]))) act.file(file);
    event.target.value = "";
  });
  document.addEventListener("paste", (event) => {
    if (takeFiles(event.clipboardData?.files, act)) event.preventDefault();
  });
  let depth = 0;
  const over = (on) => document.body.classList.toggle("dragging", on);
  document.addEventListener("dragenter", (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    depth += 1;
    over(true);
  });
  document.addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (!depth) over(false);
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    over(false);
    takeFiles(event.dataTransfer?.files, act);
  });
}

function clicking(act) {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a, [data-sign], [data-go]");
    if (!link || !plainClick(event)) return;
    const { sign, id, similar, view } = link.dataset;
    const known = sign ? () => act.part({ sign, id })
      : similar ? () => act.similar({ view, id: similar })
        : link.dataset.item ? () => act.item(link.dataset.item)
          : link.dataset.image ? () => act.image(link.dataset.image)
            : link.dataset.caption ? () => act.caption(link.dataset.caption)
              : link.dataset.go ? () => act[link.dataset.go](link)
                : link.dataset.section !== undefined ? () => act.section(link.dataset.section || null) : null;
    if (known) {
      event.preventDefault();
      known();
    }
  });
  by("compare").addEventListener("click", () => act.compare());
  addEventListener("popstate", () => act.moved());
  addEventListener("hashchange", () => act.moved());
}

const THEMES = ["automatic", "light", "dark"];

function theming() {
  const button = by("theme");
  const root = document.documentElement;
  const showTheme = () => {
    const label = t("colours", { theme: t(root.dataset.theme ?? "automatic") });
    button.setAttribute("aria-label", label);
    button.title = label;
  };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "automatic") + 1) % THEMES.length];
    if (next === "automatic") delete root.dataset.theme;
    else root.dataset.theme = next;
    try {
      localStorage.setItem("theme", next);
    } catch {
      // Without storage it lasts for this visit.
    }
    showTheme();
  });
  showTheme();
}

export function listen(act, delay) {
  typing(act, delay);
  picking(act);
  clicking(act);
  theming();
}
