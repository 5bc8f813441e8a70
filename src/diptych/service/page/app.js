// The page: reads the URL, searches, shows the results, and writes the URL.

import { addFiles, addQuery, sizeMessage } from "./add.js";
import { api, Problem } from "./api.js";
import { isFiltered, isSameList, NO_FILTER, read, STEP, toCaption, toImage, toInput, SECTIONS, toSimilar, toText, withoutPart, withoutQuery, withPart, write } from "./url.js";
import { extendResults, hasProbabilities, modeOf, mostHits, runSearch, viewOf } from "./search.js";
import { focusItem, listItems, offerOrder, showCollection, showOrder } from "./browse.js";
import { choices, columns } from "./compare.js";
import { labelOf, listenToParts, showParts, SIGNS } from "./compose.js";
import { by, h, isolated, number, show } from "./dom.js";
import { listenToFilters, offerFilters, showFilterError, showFilters } from "./filters.js";
import { closeItem, listenToItem, openItem } from "./item.js";
import { canLearn, describeRefit } from "./learn.js";
import { describe } from "./model.js";
import { button, errorNotice, exampleTexts, ignored, noResults, notice, tokenForm } from "./notices.js";
import { showPairs } from "./pairs.js";
import { offerInput, showQuery } from "./query.js";
import { captions, images, waiting } from "./results.js";
import { listen } from "./events.js";
import { pieces, t, translate } from "./strings.js";
import { capitalise, counted, many, name, useNames } from "./words.js";

const TYPING = 180;
const PATIENCE = 140;
const TOKEN = "#token=";

let state = { ...read(location), upload: null };
let model = null;
let running = null;
let list = null; // the items that are shown, in order

const bodies = { search: by("images-body"), annotate: by("text-body"), empty: by("browse") };

/** Remember how far the page is scrolled, for those who come back to it. */
const keepPlace = () => history.replaceState({ ...history.state, top: scrollY }, "");

function go(next, { replace = false, focus = true } = {}) {
  const isItem = next.item !== state.item && isSameList(next, state);
  if (replace) history.replaceState(isItem ? history.state : null, "", write(next));
  else {
    keepPlace();
    history.pushState({ opened: isItem }, "", write(next));
  }
  state = settle(next);
  if (isItem) showItem();
  else render({ focus });
}

/** Without captions, what is found for an image are others like it. */
const settle = (next) =>
  (model && !model.items.text && (next.image || next.upload) ? { ...next, similar: true, compare: false } : next);

/** Open or close the item of the state. */
function showItem() {
  if (state.item) openItem(state.item, list, state, model);
  else closeItem();
}

/** Focus the item that was looked at last; going back is what closes it. */
function leaveItem(item) {
  const at = list?.indexOf(item) ?? -1;
  if (modeOf(state) === "empty" && at >= 0) focusItem(at);
  else document.querySelector(`[data-item="${CSS.escape(item)}"]`)?.focus();
  if (!state.item) return;
  if (history.state?.opened) history.back();
  else go({ ...state, item: null }, { replace: true });
}

/** What comes of it if hits are confirmed; false: they cannot be. */
const learned = () => canLearn(state, model) && describeRefit(model);
const again = () => render({ focus: false });
const unfiltered = () => go({ ...state, ...NO_FILTER }, { focus: false });
const compared = (mode) => (mode === "empty" || state.similar ? [] : choices(model, mode));
const kindOf = (mode) => (mode === "annotate" ? "caption" : "image");

function layOut(mode) {
  const panels = by("panels");
  panels.dataset.mode = mode;
  panels.classList.toggle("similar", state.similar);
  panels.classList.toggle("comparing", state.compare && mode !== "empty");
  // The query comes before the results, for screen readers and on narrow screens. The panel that may have
  // the cursor stays where it is: moving it would lose the cursor.
  const isFirst = mode === "annotate" && !state.similar;
  if (isFirst !== (panels.firstElementChild === by("images"))) {
    if (isFirst) panels.prepend(by("images"));
    else by("text").after(by("images"));
  }
  const [toolbar, isBrowsing] = [by("toolbar"), mode === "empty"];
  // What filters the collection is above it.
  if (isBrowsing !== (toolbar.previousElementSibling === panels)) panels[isBrowsing ? "after" : "before"](toolbar);
  toolbar.hidden = false;
  by("browse").hidden = state.section || !isBrowsing;
  by("aside").hidden = mode !== "search" || state.compare;
  showOrder(state, isBrowsing);
  by("compare").setAttribute("aria-pressed", String(state.compare));
  by("about-scores").textContent = t(hasProbabilities(state, model) ? "probabilities" : "scores");
  by("compare").hidden = compared(mode).length === 0;
  show(by("message"));
  for (const name of ["search", ...SECTIONS]) by(name).hidden = name !== (state.section ?? "search");
  for (const link of document.querySelectorAll("[data-section]")) {
    const section = link.dataset.section || null;
    link.href = write({ ...state, section });
    if (section === state.section) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** What the server found, without the item whose similar items are shown. */
const hitsOf = (result) => result.hits.filter((hit) => !state.similar || hit.id !== (state.image ?? state.caption));

/** The hits as a list of items, which goes on as long as there are more. */
function listHits(place, mode, found) {
  const [result] = found.responses[0].results;
  return {
    get total() { return hitsOf(result).length; },
    get goesOn() { return result.more && state.k < mostHits(state, model); },
    indexOf: (id) => hitsOf(result).findIndex((hit) => hit.id === id),
    async get(at) {
      const next = place.querySelector(".more button");
      if (at >= this.total && next) await showMore(next, place, mode, found);
      return hitsOf(result)[at];
    },
  };
}

/** A button for the next hits, or why there is none. */
function more(place, mode, found) {
  const isMore = found.responses.some(({ results: [result] }) => result.more);
  if (!isMore) return h("p", { class: "more note" }, t("noMore", { many: many(kindOf(mode)) }));
  if (state.k >= mostHits(state, model)) return h("p", { class: "more note" }, t("onlyFirst", { n: number(mostHits(state, model)) }));
  return h("p", { class: "more" }, button(t("showMore"), (event) => showMore(event.currentTarget, place, mode, found)));
}

async function showMore(pressed, place, mode, found) {
  const signal = renew();
  const next = { ...state, k: Math.min(state.k + STEP, mostHits(state, model)) };
  const [result] = found.responses[0].results;
  const shown = hitsOf(result).length;
  pressed.setAttribute("aria-busy", "true");
  try {
    if (!(await extendResults(found.responses, next, model, signal))) {
      go(next, { replace: true, focus: false });
      return;
    }
  } catch (problem) {
    if (signal.aborted) return;
    if (!(problem instanceof Problem) || problem.status === 401) failed(problem, place);
    else pressed.parentElement.replaceWith(errorNotice(problem, () => go(next, { replace: true, focus: false }), state, unfiltered));
    return;
  }
  state = next;
  history.replaceState(history.state, "", write(state));
  layOut(mode);
  const hadFocus = document.activeElement === pressed;
  if (state.compare) {
    showResults(place, mode, found);
  } else {
    const added = (mode === "search" ? images : captions)(hitsOf(result), state, found.own, { from: shown, learns: learned() });
    place.querySelector("ol").append(...added.children);
    pressed.parentElement.replaceWith(more(place, mode, found));
    announce(mode, found);
  }
  if (hadFocus) place.querySelector("ol").querySelectorAll(".tile, .line")[shown]?.focus({ preventScroll: true });
}

const shorten = (text) => (text.length > 40 ? `${text.slice(0, 39).trimEnd()}…` : text);

/** Say what is shown for what, on the page and to screen readers. */
function announce(mode, { item, parts, responses, total }) {
  const [result] = responses[0].results;
  const hits = hitsOf(result);
  const isCut = result.more && state.k >= mostHits(state, model);
  const passing = total === null ? counted(hits.length, kindOf(mode)) : t("amountPassing", { n: number(hits.length), all: counted(total, kindOf(mode)) }, total);
  const amount = isCut ? t("firstHits", { amount: passing }) : passing;
  const isText = viewOf(state) === "text";
  const text = isText ? item?.text ?? (state.q.trim() || state.caption) : item?.text ?? (state.input.trim() || null);
  const [key, noun] = [state.similar ? "Like" : "For", name("image")];
  const query = [text === null ? t(`query${key}`, { noun }) : pieces("quoted", { text: h("bdi", {}, text) }),
    state.parts.map((part) => [` ${SIGNS[part.sign]} `, h("bdi", {}, shorten(labelOf(part, parts)))])].flat(2);
  const words = pieces(`hits${key}`, { amount, query }).flat();
  const seconds = Math.max(...responses.map((each) => each.seconds));
  const best = hits[0]?.text ?? hits[0]?.captions?.[0]?.text;
  const spoken = words.map((word) => (typeof word === "string" ? word : isolated(word.textContent))).join("");
  show(by("status"), h("span", {}, capitalise(words[0]), words.slice(1)), h("span", { class: "note" }, ` ${number(Math.max(1, Math.round(seconds * 1000)))} ms`));
  by("announcement").textContent = `${spoken}${best ? t("best", { text: isolated(best) }) : ""}`;
}

function showResults(place, mode, found) {
  const [result] = found.responses[0].results;
  const hits = hitsOf(result);
  const notes = [ignored(result.ignored_words)].filter(Boolean);
  place.dataset.for = mode;
  if (!hits.length) {
    show(place, notes, noResults(state, unfiltered));
  } else if (state.compare) {
    show(place, notes, columns(mode, found.responses, state, found.own, model), more(place, mode, found));
  } else {
    const list = (mode === "search" ? images : captions)(hits, state, found.own, { learns: learned() });
    show(place, notes, list, more(place, mode, found));
  }
  announce(mode, found);
  for (const note of notes) by("announcement").append(` ${note.textContent}`);
}

/** Show the items that pass the filter. */
async function browse(place, signal) {
  const listed = await listItems(state, model, signal, again);
  if (signal.aborted) return;
  list = listed;
  place.dataset.for = "empty";
  const what = isFiltered({ ...state, least: null }) ? t("passing", { n: number(list.total), all: counted(model.items.image, "image") }) : counted(list.total, "image");
  if (list.total) showCollection(place, list, state, capitalise(many("image")), (problem) => signal.aborted || failed(problem, place));
  else show(place, noResults(state, unfiltered));
  show(by("status"), what);
  by("announcement").textContent = what;
}

const withoutIt = (part) => go(withoutPart(state, part), { focus: false });

/** Stop what is running; return the signal that will stop what begins now. */
function renew() {
  running?.abort();
  running = new AbortController();
  return running.signal;
}

async function render({ focus = true, restored = false } = {}) {
  running?.abort();
  if (!model) return;
  state = settle(state);
  const mode = modeOf(state);
  list = null;
  showItem();
  if (mode !== "empty" && compared(mode).length === 0) state.compare = false;
  layOut(mode);
  const section = state.section && t(state.section);
  document.title = section ? `${section} · Diptych` : state.q ? `${isolated(state.q)} · Diptych` : "Diptych";
  if (state.section) {
    const place = by(state.section);
    if (state.section === "model") show(place, describe(model));
    else showPairs(place, state, model, renew(), (problem) => failed(problem, place));
    if (focus) place.querySelector("h1").focus({ preventScroll: true });
    return;
  }
  showFilters(state, model);
  showQuery(state, mode, model, null, restored);
  showParts(state, model, new Map(), withoutIt);
  if (mode === "empty") {
    show(by("text-body"), exampleTexts(model, state));
    show(by("images-body"));
  } else {
    show(by("browse"));
  }
  const place = bodies[mode];
  const signal = renew();
  place.setAttribute("aria-busy", "true");
  const slow = setTimeout(() => {
    by("status").textContent = t(mode === "empty" ? "loading" : "searching");
    if (mode === "empty") return;
    if (!place.querySelector(".grid:not(.placeholders), .lines:not(.placeholders)") || place.dataset.for !== mode) {
      show(place, state.compare ? columns(mode, null, state, new Set(), model) : waiting(mode));
    }
  }, PATIENCE);
  try {
    if (mode === "empty") {
      await browse(place, signal);
    } else {
      const found = await runSearch(state, model, signal);
      if (signal.aborted) return;
      showQuery(state, mode, model, found.item);
      showParts(state, model, found.parts, withoutIt);
      showResults(place, mode, found);
      list = listHits(place, mode, found);
    }
    if (state.item) showItem();
    if (focus) {
      by("status").focus({ preventScroll: true });
      scrollTo({ top: 0 });
    } else if (restored || history.state?.top) {
      scrollTo({ top: history.state?.top ?? 0 });
    }
  } catch (problem) {
    if (signal.aborted) return;
    failed(problem, place);
  } finally {
    clearTimeout(slow);
    if (!signal.aborted) place.removeAttribute("aria-busy");
  }
}

function failed(problem, place) {
  if (!(problem instanceof Problem)) throw problem;
  if (problem.status === 401) {
    signIn();
    return;
  }
  if (problem.kind === "bad-filter") showFilterError(problem.message);
  const shown = errorNotice(problem, again, state, unfiltered);
  show(place, shown);
  show(by("status"));
  by("announcement").textContent = [...shown.querySelectorAll("p")].map((part) => part.textContent).join(". ");
}

/** Show a message in place of the page. */
function showInstead(shown) {
  for (const section of ["search", "browse", ...SECTIONS]) by(section).hidden = true;
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

function showSummary() {
  show(by("summary"), h("bdi", {}, model.name), ` · ${counted(model.items.image, "image")} · ${counted(model.items.text, "caption")}`);
  document.querySelector("[data-section=pairs]").hidden = !model.items.text;
}

/** Count the items again. */
async function recount() {
  model = await api.model().catch(() => model);
  showSummary();
}

/** Show what was written; a list of pairs stays as it is. */
async function refresh() {
  await recount();
  if (!state.section) again();
}

/** Show the collection with what was added, or with one item of it. */
async function showAdded(item = null) {
  await recount();
  go({ ...withoutQuery(state), by: null, rising: false, ...NO_FILTER, item });
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
    else showInstead(notice(t("noAnswer"), problem.message, button(t("tryAgain"), () => location.reload())));
    return;
  }
  useNames(model);
  offerInput(model);
  offerFilters(model, filter);
  offerOrder(model, filter);
  showSummary();
  document.documentElement.classList.add("ready");
  render({ focus: false });
}

/** Search with other filters; Enter in a field tells of the same change twice. */
function filter(change) {
  const next = { ...state, k: STEP, ...change(state) };
  if (write(next) !== write(state)) go(next, { focus: false });
}

translate();
listenToFilters(filter);
listenToItem({ go: (item) => go({ ...state, item }, { replace: true }), left: leaveItem, written: refresh });
listenToParts((part) => go(withPart(state, part), { focus: false }));
// The browser would scroll before there are results.
history.scrollRestoration = "manual";
addEventListener("scrollend", () => (list || state.section) && keepPlace());

listen({
  typed: (q, done) => {
    const isTyped = viewOf(state) === "text" && !state.caption;
    const { parts } = isTyped ? state : { parts: [] };
    go({ ...toText(state, q), parts }, { replace: !done && isTyped, focus: false });
  },
  part: (part) => go(withPart(state, part)),
  similar: (item) => go(toSimilar(state, item)),
  cleared: () => go(withoutQuery(state), { focus: false }),
  item: (item) => go({ ...state, item }),
  image: (id) => go(toImage(state, id)),
  caption: (id) => go(toCaption(state, id)),
  accepts: (file) => (model && model.inputs !== "images" ? model.inputs === "paths" : file.type.startsWith("image/") || !file.type),
  input: (text) => go(text.trim() ? toInput(state, text) : withoutQuery(state)),
  file: (file) => {
    if (model && model.can.image !== null) return;
    if (model && file.size > model.limits.upload_bytes) {
      go({ ...withoutQuery(state), upload: file }, { focus: false });
      running?.abort();
      failed(new Problem(413, "too-large", sizeMessage(file, model.limits.upload_bytes)), bodies.annotate);
      return;
    }
    go({ ...withoutQuery(state), upload: file });
  },
  files: (files) => {
    if (!model?.writable || model.can.image !== null) return false;
    addFiles(files, model, showAdded);
    return true;
  },
  add: (pressed) => addQuery(pressed, state.upload, model, showAdded),
  captions: () => go({ ...state, similar: false, k: STEP }, { replace: Boolean(state.upload) }),
  alike: () => go({ ...state, similar: true, compare: false, k: STEP }, { replace: Boolean(state.upload) }),
  compare: () => go({ ...state, compare: !state.compare }, { focus: false }),
  home: () => go({ ...withoutQuery(state), compare: false, ...NO_FILTER }, { focus: false }),
  results: () => (bodies[modeOf(state)]?.querySelector("a, button") ?? by("q")).focus(),
  section: (section) => go({ ...state, section }),
  moved: () => {
    if (location.hash.startsWith(TOKEN)) {
      start();
      return;
    }
    const next = { ...read(location), upload: null };
    // An uploaded file is not part of the address, and an open item may have made the list longer.
    const { upload, similar, k } = state;
    if (next.item !== state.item && isSameList({ ...next, upload, similar, k }, state)) {
      state = { ...state, item: next.item };
      history.replaceState(history.state, "", write(state));
      showItem();
    } else {
      state = next;
      render({ focus: false, restored: true });
    }
  },
}, TYPING);

start();
