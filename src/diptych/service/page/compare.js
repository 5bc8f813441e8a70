// The same question under three weightings, side by side: where does the right answer stand?

import { h } from "./dom.js";
import { captions, ownRank, pictures, waiting } from "./results.js";

export const WEIGHTINGS = [
  { name: "asymmetric", title: "Query generation", about: "Σ weighs what is searched: the paper's way." },
  { name: "none", title: "CCA", about: "No weights: plain canonical correlation analysis." },
  { name: "search-generation", title: "Search generation", about: "Σ weighs the query instead." },
];

const ordinal = (n) => {
  const tail = n % 100 > 10 && n % 100 < 14 ? "th" : { 1: "st", 2: "nd", 3: "rd" }[n % 10] ?? "th";
  return `${n}${tail}`;
};

function standing(mode, hits, own) {
  if (!own.size) return null;
  const word = mode === "search" ? "Its own picture" : "Its own sentence";
  const rank = ownRank(hits, own);
  return h("p", { class: rank === 1 ? "standing first" : "standing" },
    h("span", { class: "dot", "aria-hidden": "true" }),
    rank === null ? `${word} is not among the first ${hits.length}` : `${word} comes ${ordinal(rank)}`);
}

export function columns(mode, found, state, own, ofModel) {
  return h("div", { class: "columns" }, WEIGHTINGS.map((weighting, at) => {
    const hits = found?.[at]?.results[0].hits;
    return h("section", { class: "column", "aria-label": weighting.title, "data-weighting": weighting.name },
      h("h3", {}, weighting.title, weighting.name === ofModel ? h("span", { class: "tag" }, "this model") : null),
      h("p", { class: "note" }, weighting.about),
      hits ? standing(mode, hits, own) : null,
      hits ? (mode === "search" ? pictures : captions)(hits, state, own) : waiting(mode, 6));
  }));
}
