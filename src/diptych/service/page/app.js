// The page: reads the address, asks the server, shows what came, and writes the address.

import { api, Problem } from "./api.js";
import { nothing, read, toCaption, toPicture, toWords, write } from "./address.js";
import { ask, modeOf } from "./asking.js";
import { columns } from "./compare.js";
import { by, h, isolated, plural, show } from "./dom.js";
import { describe } from "./model.js";
import { button, nothingFound, notice, samples, sentences, tokenForm, trouble } from "./notices.js";
import { showQuery } from "./query.js";
import { captions, pictures, waiting } from "./results.js";
import { listen } from "./gestures.js";

const TYPING = 180;
const PATIENCE = 140;
const TOKEN = "#token=";

let state = { ...read(location), upload: null };
let model = null;
let running = null;

const bodies = { search: by("pictures-body"), annotate: by("words-body") };

function go(next, { replace = false, focus = true } = {}) {
  const address = write(next);
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  state = next;
  render({ focus });
}

const again = () => render({ focus: false });

function layOut(mode) {
  const desk = by("desk");
  desk.dataset.mode = mode;
  desk.classList.toggle("comparing", state.compare && mode !== "empty");
  // What is asked comes before what is found, for readers and on narrow screens. The panel that may hold
  // the cursor stays where it is: moving it would lose the cursor.
  if (mode === "annotate") desk.prepend(by("pictures"));
  else desk.append(by("pictures"));
  by("toolbar").hidden = mode === "empty";
  by("compare").setAttribute("aria-pressed", String(state.compare));
  by("compare").hidden = model.weightings.length === 0;
  show(by("door"));
  by("search").hidden = state.model;
  by("model").hidden = !state.model;
  by(state.model ? "to-search" : "to-model").removeAttribute("aria-current");
  by(state.model ? "to-model" : "to-search").setAttribute("aria-current", "page");
  by("to-search").href = write({ ...state, model: false });
  by("to-model").href = write({ ...state, model: true });
}

function filters() {
  const names = Object.entries(model.facets);
  show(by("filters"), names.map(([name, values]) => {
    const id = `filter-${name}`;
    const select = h("select", { id, onchange: () => {
      const where = { ...state.where };
      if (select.value) where[name] = select.value;
      else delete where[name];
      go({ ...state, where }, { focus: false });
    } }, h("option", { value: "" }, "all"),
    values.map((value) => h("option", { value: String(value), dir: "auto", selected: state.where[name] === String(value) }, String(value))));
    return h("span", { class: "filter" }, h("label", { for: id, dir: "auto" }, name), select);
  }));
}

function more(mode, hits) {
  const most = Math.min(model.limits.k, mode === "search" ? model.items.image : model.items.text);
  if (hits.length < state.k || state.k >= most) return null;
  return h("p", { class: "more" }, button("Show more", () =>
    go({ ...state, k: Math.min(most, state.k * 2) }, { replace: true, focus: false })));
}

function said(mode, hits, seconds, item) {
  const what = mode === "search" ? plural(hits.length, "picture") : plural(hits.length, "sentence");
  const words = mode === "search" ? item?.text ?? (state.q.trim() || state.caption) : null;
  const query = words === null ? "this picture" : ["“", h("bdi", {}, words), "”"];
  show(by("status"), h("span", {}, `${what} for `, query), h("span", { class: "note" }, ` ${Math.max(1, Math.round(seconds * 1000))} ms`));
  const status = `${what} for ${words === null ? "this picture" : `“${isolated(words)}”`}`;
  const best = hits[0]?.text ?? hits[0]?.captions?.[0]?.text;
  by("said").textContent = best ? `${status}. The best: ${isolated(best)}` : status;
}

async function render({ focus = true, restored = false } = {}) {
  running?.abort();
  if (!model) return;
  if (model.weightings.length === 0) state.compare = false;
  const mode = modeOf(state);
  layOut(mode);
  document.title = state.model ? "Model · Diptych" : state.q ? `${isolated(state.q)} · Diptych` : "Diptych";
  if (state.model) {
    show(by("model"), describe(model));
    if (focus) by("model").querySelector("h1").focus({ preventScroll: true });
    return;
  }
  filters();
  showQuery(state, mode, model, null, restored);
  if (mode === "empty") {
    show(by("words-body"), sentences(model, state));
    show(by("pictures-body"), samples(model, state));
    by("said").textContent = "";
    return;
  }
  const place = bodies[mode];
  const control = new AbortController();
  running = control;
  place.setAttribute("aria-busy", "true");
  const slow = setTimeout(() => {
    if (!place.querySelector(".grid:not(.ghosts), .lines:not(.ghosts)") || place.dataset.for !== mode) {
      show(place, state.compare ? columns(mode, null, state, new Set(), model.weighting) : waiting(mode));
    }
    by("status").textContent = "Looking…";
  }, PATIENCE);
  try {
    const { item, found, own } = await ask(state, model, control.signal);
    if (control.signal.aborted) return;
    showQuery(state, mode, model, item);
    const hits = found[0].results[0].hits;
    place.dataset.for = mode;
    if (!hits.length) {
      show(place, nothingFound(state, () => go({ ...state, where: {} }, { focus: false })));
    } else if (state.compare) {
      show(place, columns(mode, found, state, own, model.weighting), more(mode, hits));
    } else {
      show(place, (mode === "search" ? pictures : captions)(hits, state, own), more(mode, hits));
    }
    said(mode, hits, Math.max(...found.map((one) => one.seconds)), item);
    if (focus) {
      by("status").focus({ preventScroll: true });
      scrollTo({ top: 0 });
    }
  } catch (problem) {
    if (problem.name === "AbortError") return;
    failed(problem, place);
  } finally {
    clearTimeout(slow);
    if (running === control) place.removeAttribute("aria-busy");
  }
}

function failed(problem, place) {
  if (!(problem instanceof Problem)) throw problem;
  if (problem.status === 401) {
    signIn();
    return;
  }
  const shown = trouble(problem, again);
  show(place, shown);
  show(by("status"));
  by("said").textContent = [...shown.querySelectorAll("p")].map((part) => part.textContent).join(". ");
}

/** Say something instead of the page, which stays as it is behind it. */
function instead(shown) {
  by("search").hidden = true;
  by("model").hidden = true;
  show(by("door"), shown);
}

function signIn() {
  model = null;
  const form = tokenForm(enter);
  instead(form);
  form.querySelector("input").focus();
}

async function enter(token) {
  try {
    await api.session(token);
  } catch (problem) {
    return problem.message;
  }
  location.reload();
  return "";
}

/** A part of an address as it was meant; what is no such part, as it is. */
function plainly(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

async function start() {
  if (location.hash.startsWith(TOKEN)) {
    const token = plainly(location.hash.slice(TOKEN.length));
    history.replaceState(null, "", location.pathname + location.search);
    await api.session(token).catch(() => null);
  }
  try {
    model = await api.model();
  } catch (problem) {
    if (problem.status === 401) signIn();
    else instead(notice("The server does not answer", problem.message, button("Try again", () => location.reload())));
    return;
  }
  show(by("which"), h("bdi", {}, model.name), ` · ${plural(model.items.image, "picture")} · ${plural(model.items.text, "sentence")}`);
  document.documentElement.classList.add("ready");
  render({ focus: false });
}

listen({
  typed: (q, done) => {
    const next = toWords(state, q);
    go(next, { replace: !done && modeOf(state) === "search" && !state.caption, focus: false });
  },
  cleared: () => go(nothing(state), { focus: false }),
  picture: (id) => go(toPicture(state, id)),
  caption: (id) => go(toCaption(state, id)),
  file: (file) => {
    if (model && model.can.image !== null) return;
    if (model && file.size > model.limits.upload_bytes) {
      go({ ...nothing(state), upload: file }, { focus: false });
      running?.abort();
      failed(new Problem(413, "too-large", `it has ${(file.size / 2 ** 20).toFixed(0)} MB; at most ${(model.limits.upload_bytes / 2 ** 20).toFixed(0)} are taken.`), bodies.annotate);
      return;
    }
    go({ ...nothing(state), upload: file });
  },
  compare: () => go({ ...state, compare: !state.compare }, { focus: false }),
  home: () => go({ ...nothing(state), compare: false, where: {} }, { focus: false }),
  results: () => (bodies[modeOf(state)]?.querySelector("a, button") ?? by("q")).focus(),
  section: (isModel) => go({ ...state, model: isModel }),
  moved: () => {
    if (location.hash.startsWith(TOKEN)) {
      start();
      return;
    }
    state = { ...read(location), upload: null };
    render({ focus: false, restored: true });
  },
}, TYPING);

start();
