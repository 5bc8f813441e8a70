// The side that asks: words in the box, or a picture and its name.

import { by, h, show } from "./dom.js";
import { sentences } from "./notices.js";
import { frame } from "./results.js";

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

function words(state, mode, item) {
  if (mode !== "search") return "";
  return state.caption ? (item?.text ?? state.caption) : state.q;
}

function picture(state, item) {
  const name = state.upload ? state.upload.name || "pasted picture" : state.image;
  const whole = state.upload
    ? h("span", { class: "frame" }, h("img", { src: preview(state.upload), alt: "", onerror: (event) => event.target.remove() }))
    : frame(state.image, item.picture, item.captions?.[0]?.text ?? "", { lazy: false, whole: true });
  return h("figure", { class: "chosen" }, whole,
    h("figcaption", {}, h("span", { dir: "auto" }, name),
      state.upload ? h("span", {}, "It stays in this window: the address does not hold it.") : null));
}

/** Show what is asked; an item of the index is known only once the server has told of it. */
export function showQuery(state, mode, model, item, restored = false) {
  const field = by("q");
  const known = mode === "search" && state.caption ? item !== null : true;
  // Words under the cursor are the person's: they may be ahead of what was asked.
  const typing = !restored && document.activeElement === field && mode !== "annotate" && !state.caption;
  if (known && !typing) field.value = words(state, mode, item);
  by("clear").hidden = field.value === "";
  field.disabled = model.can.text !== null;
  grow(field);
  by("words-note").textContent = model.can.text !== null ? model.can.text
    : (mode === "search" && item?.image ? "A caption of the index; its own picture is marked." : "");
  if (mode === "annotate") show(by("pictures-body"), state.upload || item ? picture(state, item) : null);
  if (mode === "search") show(by("words-body"), h("div", { class: "aside" }, sentences(model, state)));
  by("drop").classList.toggle("off", model.can.image !== null);
  if (model.can.image !== null) by("drop-text").textContent = model.can.image;
}
