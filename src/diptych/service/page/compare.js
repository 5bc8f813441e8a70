// The same query with the parts of a fusion side by side, with the rank of its own pair in each.

import { decimal, h, number } from "./dom.js";
import { captions, images, ownRank, waiting } from "./results.js";
import { t } from "./strings.js";
import { one } from "./words.js";

const OWN = { name: null, title: t("allParts") };
const UNCORRECTED = { name: "uncorrected", title: t("uncorrected"), about: t("uncorrectedAbout") };

/** What a fusion is compared with in a mode, itself among it; none if there is nothing else. */
export function choices(model, mode) {
  if (!model.parts[mode]) return [];
  const corrected = model.corrections[mode] !== "none";
  const own = { ...OWN, about: t(corrected ? "withCorrection" : "withWeights") };
  const alone = model.parts[mode].map(({ name, weight, use }) =>
    ({ name, title: name, about: t("alone", { weight: decimal(weight, 2), use }) }));
  const all = [own, ...(corrected ? [UNCORRECTED] : []), ...(alone.length > 1 ? alone : [])];
  return all.length > 1 ? all : [];
}

const ENDINGS = { one: "st", two: "nd", few: "rd", other: "th" };
const ordinals = new Intl.PluralRules("en", { type: "ordinal" });

/** An English ordinal; other languages need none. */
const ordinal = (n) => `${n}${ENDINGS[ordinals.select(n)]}`;

function showRank(mode, hits, own) {
  if (!own.size) return null;
  const noun = one(mode === "search" ? "image" : "caption");
  const rank = ownRank(hits, own);
  return h("p", { class: rank === 1 ? "own-rank first" : "own-rank" },
    h("span", { class: "dot", "aria-hidden": "true" }),
    t(rank === null ? "ownMissing" : "ownRank", { noun, ordinal: ordinal(rank), n: number(rank ?? hits.length) }));
}

/** Only all parts together have probabilities; side by side, all have scores. */
const withScores = (hits) => hits.map((hit) => ({ ...hit, probability: null }));

export function columns(mode, responses, state, own, model) {
  const compared = choices(model, mode);
  const grid = h("div", { class: "columns" }, compared.map(({ name, title, about }, at) => {
    const hits = responses?.[at]?.results[0].hits;
    const isModel = name === null;
    return h("section", { class: "column", "aria-label": title, "data-weighting": name ?? model.weighting },
      h("h3", {}, h("bdi", {}, title), isModel ? h("span", { class: "tag" }, t("thisModel")) : null),
      h("p", { class: "note" }, about),
      hits ? showRank(mode, hits, own) : null,
      hits ? (mode === "search" ? images : captions)(withScores(hits), state, own, { plain: true }) : waiting(mode, 6));
  }));
  grid.style.setProperty("--columns", String(compared.length < 5 ? compared.length : 3));
  return grid;
}
