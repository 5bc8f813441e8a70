// The query: a text in the box, or an image and its name.

import { by, h, show } from "./dom.js";
import { exampleTexts } from "./notices.js";
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

function queryText(state, mode, item) {
  if (mode !== "search") return "";
  return state.caption ? (item?.text ?? state.caption) : state.q;
}

function queryImage(state, item) {
  const name = state.upload ? state.upload.name || "pasted image" : state.image;
  const whole = state.upload
    ? h("span", { class: "frame" }, h("img", { src: preview(state.upload), alt: "", onerror: (event) => event.target.remove() }))
    : frame(state.image, item.has_file, item.captions?.[0]?.text ?? "", { lazy: false, whole: true });
  return h("figure", { class: "chosen" }, whole,
    h("figcaption", {}, h("span", { dir: "auto" }, name),
      state.upload ? h("span", {}, "This image is not part of the address; it is lost when you leave the page.") : null));
}

/** Show the query; a stored item is known only once the server has answered. */
export function showQuery(state, mode, model, item, restored = false) {
  const field = by("q");
  const known = mode === "search" && state.caption ? item !== null : true;
  // Do not overwrite what the user is typing: it may be ahead of the query that was sent.
  const typing = !restored && document.activeElement === field && mode !== "annotate" && !state.caption;
  if (known && !typing) field.value = queryText(state, mode, item);
  by("clear").hidden = field.value === "";
  field.disabled = model.can.text !== null;
  grow(field);
  by("text-note").textContent = model.can.text !== null ? model.can.text
    : (mode === "search" && item?.image ? "A stored caption; its own image is marked." : "");
  if (mode === "annotate") show(by("images-body"), state.upload || item ? queryImage(state, item) : null);
  if (mode === "search") show(by("text-body"), h("div", { class: "aside" }, exampleTexts(model, state)));
  by("drop").classList.toggle("off", model.can.image !== null);
  if (model.can.image !== null) by("drop-text").textContent = model.can.image;
}
