// The page: reads the URL, searches, shows the results, and writes the URL.

import { api, Problem } from "./api.js";
import { read, toCaption, toImage, toInput, toText, withoutQuery, write } from "./url.js";
import { modeOf, runSearch } from "./search.js";
import { choices, columns } from "./compare.js";
import { by, h, isolated, show } from "./dom.js";
import { describe } from "./model.js";
import { button, errorNotice, exampleImages, exampleTexts, ignored, noResults, notice, tokenForm } from "./notices.js";
import { offerInput, showQuery } from "./query.js";
import { captions, images, waiting } from "./results.js";
import { listen } from "./events.js";
import { counted, name, useNames } from "./words.js";

const TYPING = 180;
const PATIENCE = 140;
const TOKEN = "#token=";

let state = { ...read(location), upload: null };
let model = null;
let running = null;

const bodies = { search: by("images-body"), annotate: by("text-body") };

function go(next, { replace = false, focus = true } = {}) {
  const address = write(next);
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  state = next;
  render({ focus });
}

const again = () => render({ focus: false });
const unfiltered = () => go({ ...state, where: {} }, { focus: false });

function layOut(mode) {
  const panels = by("panels");
  panels.dataset.mode = mode;
  panels.classList.toggle("comparing", state.compare && mode !== "empty");
  // The query comes before the results, for screen readers and on narrow screens. The panel that may have
  // the cursor stays where it is: moving it would lose the cursor.
  if (mode === "annotate") panels.prepend(by("images"));
  else panels.append(by("images"));
  by("toolbar").hidden = mode === "empty";
  by("compare").setAttribute("aria-pressed", String(state.compare));
  by("compare").hidden = mode === "empty" || choices(model, mode).length === 0;
  show(by("message"));
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

function announce(mode, hits, seconds, item) {
  const what = counted(hits.length, mode === "search" ? "image" : "caption");
  const text = mode === "search" ? item?.text ?? (state.q.trim() || state.caption) : item?.text ?? (state.input.trim() || null);
  const query = text === null ? `this ${name("image")}` : ["“", h("bdi", {}, text), "”"];
  show(by("status"), h("span", {}, `${what} for `, query), h("span", { class: "note" }, ` ${Math.max(1, Math.round(seconds * 1000))} ms`));
  const status = `${what} for ${text === null ? query : `“${isolated(text)}”`}`;
  const best = hits[0]?.text ?? hits[0]?.captions?.[0]?.text;
  by("announcement").textContent = best ? `${status}. Best: ${isolated(best)}` : status;
}

async function render({ focus = true, restored = false } = {}) {
  running?.abort();
  if (!model) return;
  const mode = modeOf(state);
  if (mode !== "empty" && choices(model, mode).length === 0) state.compare = false;
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
    show(by("text-body"), exampleTexts(model, state));
    show(by("images-body"), exampleImages(model, state));
    by("announcement").textContent = "";
    return;
  }
  const place = bodies[mode];
  const control = new AbortController();
  running = control;
  place.setAttribute("aria-busy", "true");
  const slow = setTimeout(() => {
    if (!place.querySelector(".grid:not(.placeholders), .lines:not(.placeholders)") || place.dataset.for !== mode) {
      show(place, state.compare ? columns(mode, null, state, new Set(), model) : waiting(mode));
    }
    by("status").textContent = "Searching…";
  }, PATIENCE);
  try {
    const { item, responses, own } = await runSearch(state, model, control.signal);
    if (control.signal.aborted) return;
    showQuery(state, mode, model, item);
    const { hits, ignored_words: words } = responses[0].results[0];
    const note = ignored(words);
    place.dataset.for = mode;
    if (!hits.length) {
      show(place, note, noResults(state, unfiltered));
    } else if (state.compare) {
      show(place, note, columns(mode, responses, state, own, model), more(mode, hits));
    } else {
      show(place, note, (mode === "search" ? images : captions)(hits, state, own), more(mode, hits));
    }
    announce(mode, hits, Math.max(...responses.map((each) => each.seconds)), item);
    if (note) by("announcement").append(` ${note.textContent}`);
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
  const shown = errorNotice(problem, again, state, unfiltered);
  show(place, shown);
  show(by("status"));
  by("announcement").textContent = [...shown.querySelectorAll("p")].map((part) => part.textContent).join(". ");
}

/** Show a message in place of the page. */
function showInstead(shown) {
  by("search").hidden = true;
  by("model").hidden = true;
  show(by("message"), shown);
}

function signIn() {
  model = null;
  const form = tokenForm(enter);
  showInstead(form);
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

/** Decode a part of a URL; return it unchanged if it is malformed. */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

async function start() {
  if (location.hash.startsWith(TOKEN)) {
    const token = decode(location.hash.slice(TOKEN.length));
    history.replaceState(null, "", location.pathname + location.search);
    await api.session(token).catch(() => null);
  }
  try {
    model = await api.model();
  } catch (problem) {
    if (problem.status === 401) signIn();
    else showInstead(notice("The server does not answer", problem.message, button("Try again", () => location.reload())));
    return;
  }
  useNames(model);
  offerInput(model);
  if (model.weighting === "fusion") by("compared").textContent = " parts";
  show(by("summary"), h("bdi", {}, model.name), ` · ${counted(model.items.image, "image")} · ${counted(model.items.text, "caption")}`);
  document.documentElement.classList.add("ready");
  render({ focus: false });
}

listen({
  typed: (q, done) => {
    const next = toText(state, q);
    go(next, { replace: !done && modeOf(state) === "search" && !state.caption, focus: false });
  },
  cleared: () => go(withoutQuery(state), { focus: false }),
  image: (id) => go(toImage(state, id)),
  caption: (id) => go(toCaption(state, id)),
  accepts: (file) => (model && model.inputs !== "images" ? model.inputs === "paths" : file.type.startsWith("image/") || !file.type),
  input: (text) => go(text.trim() ? toInput(state, text) : withoutQuery(state)),
  file: (file) => {
    if (model && model.can.image !== null) return;
    if (model && file.size > model.limits.upload_bytes) {
      go({ ...withoutQuery(state), upload: file }, { focus: false });
      running?.abort();
      failed(new Problem(413, "too-large", `it has ${(file.size / 2 ** 20).toFixed(0)} MB; the limit is ${(model.limits.upload_bytes / 2 ** 20).toFixed(0)} MB.`), bodies.annotate);
      return;
    }
    go({ ...withoutQuery(state), upload: file });
  },
  compare: () => go({ ...state, compare: !state.compare }, { focus: false }),
  home: () => go({ ...withoutQuery(state), compare: false, where: {} }, { focus: false }),
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
