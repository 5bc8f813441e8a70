// One item, large, in a dialog: what is known of it, what can be done with it, the next and the previous one.

import { api, Problem } from "./api.js";
import { by, h, number, plain, show } from "./dom.js";
import { editItem } from "./edit.js";
import { notice } from "./notices.js";
import { isRemoved, removeLater } from "./remove.js";
import { actions, captionOf, ownText, showItem } from "./results.js";
import { viewOf } from "./search.js";
import { t } from "./strings.js";
import { toCaption, toImage, write } from "./url.js";
import { capitalise, many } from "./words.js";

const SWIPE = 50; // px

let open = { id: null, at: -1, list: null };
let changed = () => {};

function table(item) {
  const known = Object.entries(item.metadata).filter(([, value]) => value !== null);
  const name = captionOf(item) || item.text ? [["id", item.id]] : [];
  return h("table", { class: "metadata" }, h("tbody", {}, [...name, ...known].map(([key, value]) =>
    h("tr", {}, h("th", { scope: "row", dir: "auto" }, key), h("td", { dir: "auto" }, key === "id" ? value : plain(value))))));
}

function files(item) {
  if (!item.file_url) return null;
  const href = api.file(item.id);
  return h("p", { class: "item-links" },
    item.media === "file" ? null : h("a", { href, target: "_blank", rel: "noopener" }, t("openOriginal")),
    h("a", { href, download: item.file_name ?? item.id.split("/").pop() }, t("download")));
}

const titleOf = (item) => captionOf(item) || item.text || item.file_name || item.id;

function about(item, state, model) {
  const [, ...others] = (item.captions ?? []).filter(({ text }) => text);
  const isImage = item.view === "image";
  const pairs = isImage ? model.items.text > 0 && h("a", { href: write(toImage(state, item.id)), "data-image": item.id }, t("find", { many: many("caption") }))
    : h("a", { href: write(toCaption(state, item.id)), "data-caption": item.id }, t("find", { many: many("image") }));
  return [
    h("h2", { id: "item-title", dir: "auto" }, titleOf(item)),
    others.length ? h("ul", { class: "item-captions", "aria-label": capitalise(many("caption")) },
      others.map(({ text }) => h("li", { dir: "auto" }, text))) : null,
    h("div", { class: "item-links" }, pairs,
      actions(item, { ...state, item: null }, captionOf(item) || ownText(item) || item.id, { composes: viewOf(state) !== null })),
    table(item),
    files(item),
  ];
}

const isEdited = () => Boolean(by("item").querySelector(".edit"));

/** Show what is known of an item, and where writing is allowed, edit or remove it. */
function showAbout(item, state, model) {
  const action = (label, act) => h("button", { type: "button", class: "link-button", onclick: act }, label);
  const edit = async () => {
    const stored = await api.item(item.id).catch(() => item);
    if (open.id !== item.id) return;
    show(by("item-about"), editItem(stored, model, async (isSaved) => {
      const next = isSaved ? await api.item(item.id).catch(() => stored) : stored;
      if (open.id !== item.id) return;
      showAbout(next, state, model);
      by("item-about").querySelector(".writes button").focus();
      if (isSaved) changed();
    }));
    by("item-about").querySelector("textarea, input, button").focus();
  };
  const remove = () => {
    by("item").addEventListener("close", () => removeLater(item.id, titleOf(item), (isGone, hadFocus) => {
      if (hadFocus) (isGone ? by("status") : document.querySelector(`[data-item="${CSS.escape(item.id)}"]`) ?? by("status")).focus();
      if (isGone) changed();
    }), { once: true });
    closeItem();
  };
  show(by("item-about"), about(item, state, model),
    model.writable ? h("p", { class: "item-links writes" }, action(t("edit"), edit), action(t("remove"), remove)) : null);
}

/** Show an item of a list, if there is one, in the dialog. */
export async function openItem(id, list, state, model) {
  const at = list?.indexOf(id) ?? -1;
  const isNew = open.id !== id;
  open = { id, at, list };
  if (!by("item").open) {
    by("item").showModal();
    by("item").focus();
  }
  by("item-place").textContent = at < 0 ? "" : t(list.goesOn ? "placeShown" : "placeOf", { at: number(at + 1), total: number(list.total) });
  by("item-previous").disabled = at <= 0;
  by("item-next").disabled = at < 0 || (at + 1 >= list.total && !list.goesOn);
  if (!isNew) return;
  try {
    const item = (at < 0 ? null : await list.get(at)) ?? (await api.item(id));
    if (open.id !== id) return;
    show(by("item-stage"), showItem(item, { lazy: false, whole: true }));
    showAbout(item, state, model);
  } catch (problem) {
    if (open.id !== id || problem.name === "AbortError") return;
    if (!(problem instanceof Problem)) throw problem;
    const title = t(problem.kind === "unknown-item" ? "noItem" : "notShown");
    show(by("item-stage"), notice(title, problem.kind === "unknown-item" ? null : problem.message));
    show(by("item-about"), h("h2", { id: "item-title" }, id));
  }
  if (document.activeElement?.disabled || !by("item").contains(document.activeElement)) by("item").focus();
}

export const closeItem = () => by("item").close();

/** Listen to the dialog: ``go`` is called with the id of the next item, ``left`` with that of the one it closed on,
 * ``written`` when an item was changed or removed. */
export function listenToItem({ go, left, written }) {
  const [dialog, stage] = [by("item"), by("item-stage")];
  changed = written;
  const step = async (way) => {
    const { at, list } = open;
    if (at < 0 || isEdited()) return;
    for (let to = at + way; to >= 0 && (to < list.total || list.goesOn); to += way) {
      const item = await list.get(to).catch(() => null);
      if (!item || open.list !== list || open.at !== at) return;
      if (!isRemoved(item.id)) {
        go(item.id);
        return;
      }
    }
  };
  by("item-previous").addEventListener("click", () => step(-1));
  by("item-next").addEventListener("click", () => step(1));
  by("item-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    const { id } = open;
    open = { id: null, at: -1, list: null };
    show(stage); // a player would go on
    left(id);
  });
  dialog.addEventListener("click", (event) => event.target === dialog && !isEdited() && dialog.close());
  // Escape leaves the form first.
  dialog.addEventListener("cancel", (event) => {
    if (!isEdited()) return;
    event.preventDefault();
    dialog.querySelector(".edit > .choices [type=button]").click();
  });
  dialog.addEventListener("keydown", (event) => {
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (direction && !event.altKey && !event.metaKey && !/^(AUDIO|VIDEO)$/.test(event.target.tagName)) step(direction);
  });
  // One finger moves on; two fingers enlarge.
  let start = null;
  stage.addEventListener("pointerdown", (event) => {
    start = event.pointerType === "touch" && event.isPrimary && visualViewport.scale < 1.01 ? event.clientX : null;
  });
  stage.addEventListener("pointerup", (event) => {
    const way = start === null ? 0 : event.clientX - start;
    start = null;
    if (Math.abs(way) > SWIPE) step(way < 0 ? 1 : -1);
  });
  stage.addEventListener("pointercancel", () => { start = null; });
}
