// What people call the items of the two views; requests and responses always call them "image" and "text".

import { by, number } from "./dom.js";
import { choose, forms, language, STRINGS, t } from "./strings.js";

/** The names of the views; singular and plural of their items, and of a text that belongs to one. */
let views = { image: forms("image")[0], text: forms("text")[0] };
let nouns = { image: forms("image"), text: forms("text"), caption: forms("caption") };

export const name = (view) => views[view];
export const one = (kind) => nouns[kind][0];
export const many = (kind) => nouns[kind][1];
export const counted = (count, kind) => `${number(count)} ${choose(nouns[kind], count)}`;
export const capitalise = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}`;

/** A noun for a text, also with an article where the language has one for any noun. */
export const nounOf = (noun) => ({ noun, a: `${/^[aeiou]/i.test(noun) ? "an" : "a"} ${noun}` });
export const tasks = () => ({ search: `${one("text")} → ${many("image")}`, annotate: `${one("image")} → ${many("caption")}` });

/** Names that are not the model's own are translated. */
const translated = (noun, key) => (noun === STRINGS[key][0].split("|")[0] ? forms(key) : null);

/** Use the names of a model, also in what is on the page before the model is known. */
export function useNames(model) {
  const textIsText = model.views.text === "text";
  nouns = Object.fromEntries(Object.entries(model.nouns).map(([kind, known]) => [kind, translated(known[0], kind) ?? known]));
  views = Object.fromEntries(Object.entries(model.views).map(([view, known]) => [view, translated(known, view)?.[0] ?? known]));
  const [first, second] = [many("image"), textIsText ? one("text") : many("text")];
  const title = t("title", { first, second });
  by("title").textContent = title;
  document.querySelector("meta[name=description]").content = `${title}.`;
  by("q-label").textContent = t("describeWanted", { noun: views.image });
  // Some names cannot be counted: audio, not an audio.
  const isCounted = one("image") === views.image;
  by("q").placeholder = textIsText ? t(isCounted ? "describe" : "describeThe", nounOf(views.image)) : capitalise(language === "en" ? nounOf(one("text")).a : one("text"));
  by("text-title").textContent = capitalise(second);
  by("images-title").textContent = capitalise(isCounted ? first : views.image);
}
