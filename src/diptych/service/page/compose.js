// Composed queries: texts and stored items that are added to a query, or subtracted from it.

import { api } from "./api.js";
import { by, h, show } from "./dom.js";
import { captionOf } from "./results.js";
import { viewOf } from "./search.js";
import { t } from "./strings.js";

export const SIGNS = { plus: "+", minus: "−" };

/** What a part is called; ``items``: stored items by id, as far as they are known. */
export const labelOf = ({ id, text }, items) => {
  const item = items.get(id);
  return text ?? ((item && (item.text || captionOf(item))) || id);
};

function chip(part, items, remove) {
  const label = labelOf(part, items);
  const item = items.get(part.id);
  return h("li", { class: `chip ${part.sign}` },
    h("span", { class: "sign" }, SIGNS[part.sign]),
    item?.media === "image" ? h("img", { src: api.thumbnail(item.id), alt: "", width: 28, height: 28 }) : null,
    h("bdi", { class: "chip-text", title: label }, label),
    h("button", { type: "button", "aria-label": t("removePart", { sign: SIGNS[part.sign], label }), onclick: () => remove(part) }, "×"));
}

/** Show the parts of the query below it, with a field for another text. */
export function showParts(state, model, items, remove) {
  const place = by("composition");
  const view = viewOf(state);
  place.hidden = view === null || (model.can.text !== null && !state.parts.length);
  const before = by(view === "image" ? "images-query" : "text-note");
  if (place.previousElementSibling !== before) before.after(place);
  by("part-form").hidden = model.can.text !== null;
  show(by("parts"), state.parts.map((part) => chip(part, items, (gone) => {
    remove(gone);
    by(model.can.text === null ? "part" : "status").focus();
  })));
}

/** Call ``add`` with each text that a person adds or subtracts; one that begins with a minus is subtracted. */
export function listenToParts(add) {
  const field = by("part");
  const take = (sign) => {
    const [, minus, text] = /^\s*([-−–]?)\s*(.*?)\s*$/s.exec(field.value);
    field.value = "";
    if (text) add({ sign: minus ? "minus" : sign, text });
    field.focus();
  };
  by("part-form").addEventListener("submit", (event) => {
    event.preventDefault();
    take("plus");
  });
  by("subtract").addEventListener("click", () => take("minus"));
}
