// What was found: pictures as a grid, sentences as a list, each a link that searches the other way.

import { api } from "./api.js";
import { toCaption, toPicture, write } from "./address.js";
import { h } from "./dom.js";

/** Lengths of the scores' bars beside the best: a score means something within one list only. */
function shares(hits) {
  const scores = hits.map((hit) => hit.score ?? 0);
  const [least, most] = [Math.min(...scores), Math.max(...scores)];
  if (most > 0) return scores.map((score) => score / most);
  return scores.map((score) => (most > least ? 0.15 + (0.85 * (score - least)) / (most - least) : 1));
}

function score(value, share) {
  const fill = h("i");
  fill.style.setProperty("--share", String(Math.max(0, Math.min(1, share))));
  const said = value === null ? "–" : value.toFixed(3);
  return h("span", { class: "score" },
    h("span", { class: "bar", "aria-hidden": "true" }, fill),
    h("span", { class: "num" }, h("span", { class: "unseen" }, "score "), said));
}

const ownMark = (word) =>
  h("span", { class: "own-mark" }, h("span", { class: "dot", "aria-hidden": "true" }), word);

export function frame(id, hasPicture, words, { lazy = true, whole = false } = {}) {
  const inside = h("span", { class: "frame" });
  const fallback = () => {
    inside.classList.add("no-picture");
    inside.replaceChildren(h("span", { dir: "auto" }, words || id));
  };
  if (!hasPicture) {
    fallback();
    return inside;
  }
  const src = whole ? api.image(id) : api.thumbnail(id);
  inside.append(h("img", { src, alt: "", loading: lazy ? "lazy" : "eager", decoding: "async", onerror: fallback }));
  return inside;
}

export function pictures(hits, state, own) {
  const bars = shares(hits);
  return h("ol", { class: "grid" }, hits.map((hit, place) => {
    const words = hit.captions.find((caption) => caption.text)?.text ?? "";
    const mine = own.has(hit.id);
    return h("li", { class: mine ? "own" : "" },
      h("a", { class: "tile", href: write(toPicture(state, hit.id)), "data-image": hit.id },
        h("span", { class: "held" }, frame(hit.id, hit.picture, words, { lazy: place > 11 }),
          mine ? ownMark("its own") : null),
        h("span", { class: "words-of", dir: "auto" }, words || hit.id),
        score(hit.score, bars[place])));
  }));
}

export function captions(hits, state, own) {
  const bars = shares(hits);
  const seen = hits.some((hit) => hit.thumbnail);
  return h("ol", { class: seen ? "lines" : "lines unseeing" }, hits.map((hit, place) => {
    const mine = own.has(hit.id);
    return h("li", { class: mine ? "own" : "" },
      h("a", { class: "line", href: write(toCaption(state, hit.id)), "data-caption": hit.id },
        hit.thumbnail ? h("img", { src: hit.thumbnail, alt: "", loading: "lazy", width: 56, height: 56 })
          : seen && h("span", { class: "blank", "aria-hidden": "true" }),
        h("span", { class: "sentence" }, h("bdi", {}, hit.text ?? hit.id), mine ? ownMark("its own") : null),
        score(hit.score, bars[place])));
  }));
}

/** Where the right answers of a query stand, where it is known which they are. */
export function ownRank(hits, own) {
  const at = hits.findIndex((hit) => own.has(hit.id));
  return at < 0 ? null : at + 1;
}

export function waiting(mode, count = 8) {
  const one = mode === "search"
    ? () => h("li", {}, h("span", { class: "ghost tile-ghost" }), h("span", { class: "ghost text-ghost" }))
    : () => h("li", {}, h("span", { class: "ghost line-ghost" }));
  return h("ol", { class: mode === "search" ? "grid ghosts" : "lines ghosts", "aria-hidden": "true" },
    Array.from({ length: count }, one));
}
