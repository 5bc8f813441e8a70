// The same query with the parts of a fusion side by side, with the rank of its own pair in each.

import { h } from "./dom.js";
import { captions, images, ownRank, waiting } from "./results.js";
import { one } from "./words.js";

const OWN = { name: null, title: "All parts" };
const UNCORRECTED = { name: "uncorrected", title: "Uncorrected", about: "All parts, without the correction." };

/** What a fusion is compared with in a mode, itself among it; none if there is nothing else. */
export function choices(model, mode) {
  if (!model.parts[mode]) return [];
  const corrected = model.corrections[mode] !== "none";
  const own = { ...OWN, about: corrected ? "With the correction for hubness." : "Their cosines, each times its weight." };
  const alone = model.parts[mode].map(({ name, weight, use }) =>
    ({ name, title: name, about: `Alone, by its cosine. Weight ${weight.toFixed(2)}; ${use}.` }));
  const all = [own, ...(corrected ? [UNCORRECTED] : []), ...(alone.length > 1 ? alone : [])];
  return all.length > 1 ? all : [];
}

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

/** Only all parts together have probabilities; side by side, all have scores. */
const withScores = (hits) => hits.map((hit) => ({ ...hit, probability: null }));

export function columns(mode, responses, state, own, model) {
  const compared = choices(model, mode);
  const grid = h("div", { class: "columns" }, compared.map(({ name, title, about }, at) => {
    const hits = responses?.[at]?.results[0].hits;
    const isModel = name === null;
    return h("section", { class: "column", "aria-label": title, "data-weighting": name ?? model.weighting },
      h("h3", {}, h("bdi", {}, title), isModel ? h("span", { class: "tag" }, "this model") : null),
      h("p", { class: "note" }, about),
      hits ? showRank(mode, hits, own) : null,
      hits ? (mode === "search" ? images : captions)(withScores(hits), state, own, { plain: true }) : waiting(mode, 6));
  }));
  grid.style.setProperty("--columns", String(compared.length < 5 ? compared.length : 3));
  return grid;
}
