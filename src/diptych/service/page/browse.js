// The collection: all items that pass the filter, of which only those in the window are in the document.

import { api } from "./api.js";
import { by, day, h, plain, show } from "./dom.js";
import { tile } from "./results.js";
import { listing } from "./search.js";
import { t } from "./strings.js";

const PAGE = 30;
const ROWS = 2; // above and below the window
const WAIT = 60; // until the window rests, so that pages it only passes are not loaded
const [GAP, CAPTION, LABEL] = [14, 34, 26]; // px, as in the style sheet

let shown = null;

/** Items in the order of the state, loaded page by page; ``changed`` is called if there are more or fewer of them. */
export async function listItems(state, model, signal, changed) {
  const order = state.by ? { order_by: `${state.rising ? "" : "-"}${state.by}` } : {};
  const asked = { ...listing(state, model, "image"), ...order };
  const { total } = await api.list({ ...asked, limit: 1 }, signal);
  // The server lists in order of addition; the newest are on its last page.
  const isReversed = !state.by && !state.rising;
  const size = Math.min(PAGE, model.limits.k);
  const [pages, loaded] = [new Map(), new Map()];
  async function load(page) {
    const limit = Math.min(size, total - page * size);
    const offset = isReversed ? total - page * size - limit : page * size;
    try {
      const answer = await api.list({ ...asked, offset, limit }, signal);
      loaded.set(page, isReversed ? answer.items.reverse() : answer.items);
      if (answer.total !== total) changed();
    } catch (problem) {
      pages.delete(page);
      throw problem;
    }
  }
  return {
    total,
    peek: (at) => loaded.get(Math.floor(at / size))?.[at % size],
    async get(at) {
      const page = Math.floor(at / size);
      if (!pages.has(page)) pages.set(page, load(page));
      await pages.get(page);
      return this.peek(at);
    },
    indexOf(id) {
      for (const [page, items] of loaded) {
        const at = items.findIndex((item) => item.id === id);
        if (at >= 0) return page * size + at;
      }
      return -1;
    },
  };
}

/** What an item is grouped by: the day of a date, or the value. */
const groupOf = (item, key) => {
  const value = item.metadata[key] ?? null;
  return value === null ? t("without", { key }) : day(value) ?? plain(value);
};

/** The first item of a group or of a row says which group it is in. */
function label(at, columns) {
  const { list, state } = shown;
  const [item, previous] = [list.peek(at), list.peek(at - 1)];
  const group = groupOf(item, state.by);
  const isFirst = at === 0 || (previous && groupOf(previous, state.by) !== group);
  const isSaid = isFirst || at % columns === 0;
  return h("span", { class: isFirst ? "group first" : "group", dir: "auto", title: isSaid ? group : null }, isSaid ? group : "");
}

function measure() {
  const width = shown.grid.clientWidth;
  const columns = Math.max(2, Math.floor((width + GAP) / ((width < 600 ? 100 : 160) + GAP)));
  const side = (width - GAP * (columns - 1)) / columns;
  const row = Math.floor(side + CAPTION + GAP + (shown.state.by ? LABEL : 0));
  return { columns, side, row, top: shown.grid.getBoundingClientRect().top };
}

/** Put the items of the window into the document, and take out others. */
function update() {
  if (!shown?.grid.isConnected) return;
  const { grid, list, state, tiles } = shown;
  const { columns, side, row, top } = measure();
  if (columns !== shown.columns) {
    show(grid);
    tiles.clear();
  }
  shown.columns = columns;
  grid.style.height = `${Math.ceil(list.total / columns) * row - GAP}px`;
  grid.style.setProperty("--side", `${side}px`);
  const first = Math.max(0, Math.floor(-top / row) - ROWS) * columns;
  const end = Math.min(list.total, (Math.ceil((innerHeight - top) / row) + ROWS) * columns);
  tiles.forEach((place, at) => {
    if ((at < first || at >= end) && !place.contains(document.activeElement)) {
      place.remove();
      tiles.delete(at);
    }
  });
  if (!tiles.has(shown.current)) shown.current = Math.min(Math.max(0, Math.ceil(-top / row)) * columns, list.total - 1);
  let isWaiting = false;
  let before = null;
  for (let at = first; at < end; at += 1) {
    let place = tiles.get(at);
    if (!place) {
      place = h("li", { "aria-setsize": list.total, "aria-posinset": at + 1, "data-at": at });
      if (before) before.after(place);
      else grid.prepend(place);
      tiles.set(at, place);
    }
    before = place;
    place.style.transform = `translate(${(at % columns) * (side + GAP)}px, ${Math.floor(at / columns) * row}px)`;
    const item = list.peek(at);
    const known = item && (!state.by || at === 0 || list.peek(at - 1) ? "whole" : "alone");
    if (item && place.dataset.known !== known) {
      const group = state.by ? label(at, columns) : null;
      if (place.dataset.known) place.firstChild.replaceWith(group);
      else show(place, group, tile(item, state));
      place.dataset.known = known;
    }
    if (item) place.querySelector("a").tabIndex = at === shown.current ? 0 : -1;
    else isWaiting = true;
  }
  if (isWaiting && !shown.timer) shown.timer = setTimeout(load, WAIT, shown);
}

async function load(of) {
  of.timer = 0;
  const missing = [...of.tiles.keys()].filter((at) => !of.list.peek(at));
  try {
    await Promise.all(missing.map((at) => of.list.get(at)));
  } catch (problem) {
    if (shown === of) of.failed(problem);
    return;
  }
  if (shown === of) update();
}

/** Move the focus to an item of the collection. */
export async function focusItem(at) {
  const of = shown;
  const { row, top } = measure();
  const y = Math.floor(at / of.columns) * row;
  const [above, below] = [top + y, top + y + row - innerHeight];
  if (above < 0 || below > 0) scrollBy({ top: above < 0 ? above - GAP : below + GAP, behavior: "instant" });
  await of.list.get(at).catch(of.failed);
  if (shown !== of) return;
  of.current = at;
  update();
  of.tiles.get(at)?.querySelector("a")?.focus({ preventScroll: true });
}

function press(event) {
  const { columns, list } = shown;
  const rows = Math.max(1, Math.floor(innerHeight / measure().row) - 1);
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, PageDown: rows * columns, PageUp: -rows * columns, Home: -Infinity, End: Infinity };
  if (!(event.key in steps) || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  focusItem(Math.min(list.total - 1, Math.max(0, shown.current + steps[event.key])));
}

/** Show a list of items; ``failed`` is called with what goes wrong later. */
export function showCollection(place, list, state, name, failed) {
  const grid = h("ol", {
    class: state.by ? "collection grouped" : "collection", "aria-label": name, "aria-description": t("arrows"),
    onkeydown: press, onfocusin: (event) => { shown.current = Number(event.target.closest("li").dataset.at); },
  });
  shown = { list, state, grid, failed, tiles: new Map(), current: 0, columns: 0, timer: 0 };
  show(place, grid);
  update();
}

/** Offer the order of the collection: of addition, or by a metadata key. */
export function offerOrder(model, change) {
  const field = by("order");
  show(field, ["", ...model.keys].map((key) => h("option", { value: key, dir: "auto" }, key || t("dateAdded"))));
  field.addEventListener("change", () => change(() => ({ by: field.value || null })));
  by("direction").addEventListener("click", () => change((state) => ({ rising: !state.rising })));
}

export function showOrder(state, isShown) {
  by("order-tool").hidden = !isShown;
  by("order").value = state.by ?? "";
  const [first, last] = state.by ? ["greatest", "least"] : ["newest", "oldest"];
  const name = t(state.rising ? last : first);
  by("direction").title = name;
  by("direction").setAttribute("aria-label", name);
  by("direction").textContent = state.rising ? "↑" : "↓";
}

for (const event of ["scroll", "resize"]) addEventListener(event, () => requestAnimationFrame(update), { passive: true });
