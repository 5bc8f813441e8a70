// The query: a text in the box, or an image and its name.

import { by, h, show } from "./dom.js";
import { exampleTexts } from "./notices.js";
import { captionOf, frame, player, showItem } from "./results.js";
import { viewOf } from "./search.js";
import { pieces, t } from "./strings.js";
import { toCaption, toImage, write } from "./url.js";
import { capitalise, many, name, nounOf, one } from "./words.js";

let previewed = { file: null, url: "" };

function preview(file) {
  if (previewed.file !== file) {
    URL.revokeObjectURL(previewed.url);
    previewed = { file, url: URL.createObjectURL(file) };
  }
  return previewed.url;
}

export function grow(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

function showUpload(file) {
  const [media] = file.type.split("/");
  if (media === "audio" || media === "video") return player(media, preview(file), file.name, "metadata");
  return media === "image" || !media
    ? h("span", { class: "frame" }, h("img", { src: preview(file), alt: "", onerror: (event) => event.target.remove() })) : null;
}

function queryImage(state, model, item) {
  const title = state.upload ? state.upload.name || t("pasted", { noun: one("image") }) : state.image ?? "";
  const whole = state.upload ? showUpload(state.upload)
    : item ? showItem(item, { lazy: false, whole: true }) : frame({ text: state.input });
  const choice = (isSimilar, name) => h("button", {
    type: "button", class: "switch", "data-go": isSimilar ? "alike" : "captions", "aria-pressed": String(state.similar === isSimilar),
  }, name);
  const label = (key, kind) => t(key, { Many: capitalise(many(kind)), many: many(kind) });
  const choices = [
    ...(model.items.text > 0 && !state.input ? [choice(false, label("pairsFor", "caption")), choice(true, label("alike", "image"))] : []),
    ...(state.upload && model.writable ? [h("button", { type: "button", class: "switch", "data-go": "add" }, t("addToLibrary"))] : []),
  ];
  return h("figure", { class: "chosen" }, whole, choices.length ? h("p", { class: "choices" }, choices) : null,
    h("figcaption", {}, state.similar && item ? h("span", { class: "chosen-text", dir: "auto" }, captionOf(item)) : null,
      h("span", { dir: "auto" }, title),
      state.upload ? h("span", {}, t("fileIsLost")) : null));
}

/** Offer what the encoder of the first view takes: a file, or a text; or say why it takes nothing. */
export function offerInput(model) {
  const [drop, text] = [by("drop"), by("drop-text")];
  const isImage = model.inputs === "images";
  drop.classList.toggle("off", model.can.image !== null);
  drop.classList.toggle("no-picture", !isImage || name("image") !== "image");
  if (model.can.image !== null) {
    text.textContent = model.can.image;
  } else if (model.inputs === "texts") {
    const label = t("enter", nounOf(one("image")));
    text.replaceWith(h("form", { id: "input-form" },
      h("input", { id: "input", type: "text", dir: "auto", placeholder: label, "aria-label": label, autocomplete: "off", spellcheck: "false", enterkeyhint: "search" }),
      h("button", { type: "submit", class: "button" }, t("search"))));
  } else {
    const choose = h("button", { type: "button", id: "choose", class: "link-button" }, t("choose"));
    show(text, pieces(isImage ? "dropImage" : "dropFile", { ...nounOf(name("image")), choose }), model.writable ? t("several") : null);
    by("file").multiple = model.writable;
    by("file").accept = isImage ? "image/*" : model.uploads.join(",");
  }
}

/** The own pairs of an item whose similar items are shown, in the other panel. */
function ownPairs(item, state) {
  const pairs = item.view === "image" ? item.captions : item.image ? [item] : [];
  if (!pairs.length) return null;
  const kind = item.view === "image" ? (pairs.length > 1 ? many : one)("caption") : one("image");
  const links = item.view === "image"
    ? h("ul", { class: "examples" }, pairs.map(({ id, text }) =>
      h("li", {}, h("a", { href: write(toCaption(state, id)), "data-caption": id, dir: "auto" }, text ?? id))))
    : h("a", { href: write(toImage(state, item.image)), "data-image": item.image, "aria-label": t("ownOf", { noun: kind }) },
      frame({ id: item.image, media: item.thumbnail ? "image" : null }));
  return h("div", { class: "begin aside" }, h("h3", {}, t("ownOf", { noun: kind })), links);
}

/** Show the query; a stored item is known only once the server has answered. */
export function showQuery(state, mode, model, item, restored = false) {
  const field = by("q");
  const view = viewOf(state);
  const known = view === "text" && state.caption ? item !== null : true;
  // Do not overwrite what the user is typing: it may be ahead of the query that was sent.
  const typing = !restored && document.activeElement === field && view !== "image" && !state.caption;
  if (known && !typing) field.value = view !== "text" ? "" : state.caption ? item.text ?? state.caption : state.q;
  by("clear").hidden = field.value === "";
  field.disabled = model.can.text !== null;
  grow(field);
  by("text-note").textContent = model.can.text !== null ? model.can.text
    : view === "text" && state.similar ? t("storedLike", { noun: one("caption") })
      : view === "text" && item?.image ? t("storedOwn", { noun: one("caption"), other: one("image") }) : "";
  show(by("images-query"), view === "image" && (state.upload || state.input || item) ? queryImage(state, model, item) : null);
  if (mode === "annotate") show(by("images-body"), state.similar && item ? ownPairs(item, state) : null);
  if (mode === "search") {
    show(by("text-body"));
    show(by("aside"), h("div", { class: "aside" }, state.similar ? item && ownPairs(item, state) : exampleTexts(model, state)));
  }
  const input = by("input");
  if (input && document.activeElement !== input) input.value = state.input;
}
