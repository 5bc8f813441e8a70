// What people call the items of the two views; requests and responses always call them "image" and "text".

import { by, number } from "./dom.js";

/** The names of the views; singular and plural of their items, and of a text that belongs to one. */
let views = { image: "image", text: "text" };
let nouns = { image: ["image", "images"], text: ["text", "texts"], caption: ["caption", "captions"] };

export const name = (view) => views[view];
export const one = (kind) => nouns[kind][0];
export const many = (kind) => nouns[kind][1];
export const counted = (count, kind) => `${number(count)} ${count === 1 ? one(kind) : many(kind)}`;
export const capitalise = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}`;
export const withArticle = (noun) => `${/^[aeiou]/i.test(noun) ? "an" : "a"} ${noun}`;
export const tasks = () => ({ search: `${one("text")} → ${many("image")}`, annotate: `${one("image")} → ${many("caption")}` });

/** Use the names of a model, also in what is on the page before the model is known. */
export function useNames(model) {
  ({ views, nouns } = model);
  const [first, second] = [many("image"), views.text === "text" ? "text" : many("text")];
  const title = `Search ${first} with ${second}, and ${second} with ${first}`;
  by("title").textContent = title;
  document.querySelector("meta[name=description]").content = `${title}.`;
  by("q-label").textContent = `Describe the ${views.image} you are looking for`;
  // Some names cannot be counted: audio, not an audio.
  const isCounted = one("image") === views.image;
  const described = isCounted ? withArticle(views.image) : `the ${views.image}`;
  by("q").placeholder = views.text === "text" ? `Describe ${described}` : capitalise(withArticle(one("text")));
  by("text-title").textContent = capitalise(second);
  by("images-title").textContent = capitalise(isCounted ? first : views.image);
}
