// The same query under three weightings, side by side, with the rank of its own pair in each.

import { h } from "./dom.js";
import { captions, images, ownRank, waiting } from "./results.js";
import { one } from "./words.js";

export const WEIGHTINGS = [
  { name: "asymmetric", title: "Query generation", about: "Σ weights the items: the method of the paper." },
  { name: "none", title: "CCA", about: "No weights: plain canonical correlation analysis." },
  { name: "search-generation", title: "Search generation", about: "Σ weights the query instead." },
];

const ordinal = (n) => {
  const tail = n % 100 > 10 && n % 100 < 14 ? "th" : { 1: "st", 2: "nd", 3: "rd" }[n % 10] ?? "th";
  return `${n}${tail}`;
};

function showRank(mode, hits, own) {
  if (!own.size) return null;
  const word = `Its own ${one(mode === "search" ? "image" : "caption")}`;
  const rank = ownRank(hits, own);
  return h("p", { class: rank === 1 ? "own-rank first" : "own-rank" },
    h("span", { class: "dot", "aria-hidden": "true" }),
    rank === null ? `${word} is not among the first ${hits.length}` : `${word} comes ${ordinal(rank)}`);
}

export function columns(mode, responses, state, own, ofModel) {
  return h("div", { class: "columns" }, WEIGHTINGS.map((weighting, at) => {
    const hits = responses?.[at]?.results[0].hits;
    return h("section", { class: "column", "aria-label": weighting.title, "data-weighting": weighting.name },
      h("h3", {}, weighting.title, weighting.name === ofModel ? h("span", { class: "tag" }, "this model") : null),
      h("p", { class: "note" }, weighting.about),
      hits ? showRank(mode, hits, own) : null,
      hits ? (mode === "search" ? images : captions)(hits, state, own) : waiting(mode, 6));
  }));
}
