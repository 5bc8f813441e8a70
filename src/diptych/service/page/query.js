// The query: a text in the box, or an image and its name.

import { by, h, show } from "./dom.js";
import { exampleTexts } from "./notices.js";
import { frame, player, showItem } from "./results.js";
import { name, one, withArticle } from "./words.js";

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

function showUpload(file) {
  const [media] = file.type.split("/");
  if (media === "audio" || media === "video") return player(media, preview(file), file.name, "metadata");
  return media === "image" || !media
    ? h("span", { class: "frame" }, h("img", { src: preview(file), alt: "", onerror: (event) => event.target.remove() })) : null;
}

function queryImage(state, item) {
  const label = state.upload ? state.upload.name || `pasted ${one("image")}` : state.image ?? "";
  const whole = state.upload ? showUpload(state.upload)
    : item ? showItem(item, { lazy: false, whole: true }) : frame({ text: state.input });
  return h("figure", { class: "chosen" }, whole,
    h("figcaption", {}, h("span", { dir: "auto" }, label),
      state.upload ? h("span", {}, "This file is not part of the address; it is lost when you leave the page.") : null));
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
    const label = `Enter ${withArticle(one("image"))}`;
    text.replaceWith(h("form", { id: "input-form" },
      h("input", { id: "input", type: "text", dir: "auto", placeholder: label, "aria-label": label, autocomplete: "off", spellcheck: "false", enterkeyhint: "search" }),
      h("button", { type: "submit", class: "button" }, "Search")));
  } else {
    const what = isImage ? "Drop or paste an image" : `Drop ${withArticle(name("image"))} file`;
    show(text, `${what}, or `, h("button", { type: "button", id: "choose", class: "link-button" }, "choose one"));
    by("file").accept = isImage ? "image/*" : model.uploads.join(",");
  }
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
    : (mode === "search" && item?.image ? `A stored ${one("caption")}; its own ${one("image")} is marked.` : "");
  if (mode === "annotate") show(by("images-body"), state.upload || state.input || item ? queryImage(state, item) : null);
  if (mode === "search") show(by("text-body"), h("div", { class: "aside" }, exampleTexts(model, state)));
  const input = by("input");
  if (input && document.activeElement !== input) input.value = state.input;
}
