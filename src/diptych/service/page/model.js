// The model tab: what the model is, how good it is, how it was selected.

import { heatMap, legend, spectrum } from "./charts.js";
import { h, number } from "./dom.js";
import { describeRefit } from "./learn.js";
import { capitalise, counted, many, name, tasks } from "./words.js";

const COLUMNS = { "r@1": "r@1", "r@5": "r@5", "r@10": "r@10", median_rank: "median rank", mean_rank: "mean rank" };

function facts(model) {
  const pairs = model.facts.pairs ?? {};
  const sizes = (n, m) => `${counted(n, "image")}, ${counted(m, "caption")}`;
  const fitted = pairs.train ? sizes(...pairs.train) : "unknown";
  const encoder = (view) => `${model.encoders[view].name || "precomputed features"}, ${number(model.encoders[view].dimension)} dimensions`;
  return h("dl", { class: "facts" }, [
    ["In the index", sizes(model.items.image, model.items.text)],
    ["Fitted on", fitted],
    ...(model.facts.refitted ? [["Refitted", describeRefit(model)]] : []),
    [`${capitalise(name("image"))} encoder`, encoder("image")],
    [`${capitalise(name("text"))} encoder`, encoder("text")],
    ["Weighting", model.weighting],
    ["Selected on", model.facts.selection?.pairs ?? "nothing"],
    ["Version", `${model.version}, diptych ${model.library}`],
  ].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", { dir: "auto" }, value))));
}

/** How good the probabilities are, for each task, or why there are none. */
function calibration(measured) {
  if (measured.absent) return h("p", { class: "note" }, measured.absent);
  const on = Object.values(measured).find((task) => task.on)?.on;
  const decimal = (value) => (typeof value === "number" ? value.toFixed(3) : "–");
  const rows = Object.entries(tasks()).map(([task, title]) => {
    const { absent, method, ece } = measured[task] ?? { absent: "not measured" };
    return h("tr", {}, h("th", { scope: "row" }, title), absent ? h("td", { class: "left wrap", colspan: 2 }, absent)
      : [h("td", { class: "left" }, method), h("td", { class: "strong" }, decimal(ece))]);
  });
  return [
    h("p", { class: "note" }, "ECE, the expected calibration error, is how far the stated probabilities are from the share of hits that are right, on average." + (on ? ` Measured on ${on}.` : "")),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Probabilities" }, h("table", {},
      h("thead", {}, h("tr", {}, ["task", "method", "ECE"].map((name, i) =>
        h("th", { scope: "col", class: i === 1 ? "left" : "" }, name)))),
      h("tbody", {}, rows))),
  ];
}

function recalls(metrics) {
  if (!metrics || !Object.keys(metrics).length) return null;
  const rows = Object.entries(metrics).flatMap(([split, scored]) => Object.entries(scored).map(([task, scores]) =>
    h("tr", {}, h("th", { scope: "row" }, split), h("td", { class: "left" }, tasks()[task] ?? task),
      Object.keys(COLUMNS).map((name) => {
        const value = scores[name];
        const label = typeof value === "number" ? value.toFixed(name === "median_rank" ? 0 : 1) : "–";
        return h("td", { class: name === "r@1" ? "strong" : "" }, label);
      }))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Recalls" },
    h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "pairs"), h("th", { scope: "col", class: "left" }, "task"),
        Object.values(COLUMNS).map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows)));
}

/** The parts of a fusion. */
function parts(model) {
  return Object.entries(tasks()).map(([task, title]) => h("div", { class: "parts" }, h("h3", {}, title),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Parts, ${title}` }, h("table", {},
      h("thead", {}, h("tr", {}, ["part", "weight", "compared by", "components"].map((name, i) =>
        h("th", { scope: "col", class: i === 2 ? "left" : "" }, name)))),
      h("tbody", {}, model.parts[task].map((part) => h("tr", {}, h("th", { scope: "row" }, h("bdi", {}, part.name)),
        h("td", { class: "strong" }, part.weight.toFixed(2)), h("td", { class: "left" }, part.use),
        h("td", {}, number(part.components))))))),
    h("p", { class: "note" }, `Correction for hubness: ${model.corrections[task]}.`)));
}

function regularised(model) {
  if (model.weighting === "fusion") {
    return [h("h2", {}, "Parts"),
      h("p", { class: "note" }, "Models of some of the features, named by them. A score is the sum of their cosines, each times its weight, less a correction for items that are near every query (hubness)."), parts(model)];
  }
  const chosen = (task) => `${model.filters[task][0]} on ${many("image")}, ${model.filters[task][1]} on ${many("text")}`;
  return [h("h2", {}, "Regularisation"),
    h("p", { class: "note" }, `The points of the grid, scored by retrieval. Blank points were ruled out by a bound, without an exact score. Selected for search: ${chosen("search")}; for annotate: ${chosen("annotate")}.`),
    maps(model),
    h("h2", {}, "Canonical spectrum"),
    h("p", { class: "note" }, "The singular values Σ of the regularised model. Query generation weights the items by them. Regularisation shrinks them, and chance raises them."),
    spectrum(model.spectrum, tasks()),
    correlations(model.correlations)];
}

const KINDS = { correlations: "regularised (Σ)", train_correlations: "on training pairs", validation_correlations: "on validation pairs" };

/** Correlations of the first canonical variates beside Σ; those on validation pairs are the unbiased ones. */
function correlations(measured) {
  const rows = Object.entries(measured ?? {}).flatMap(([task, kinds]) => Object.entries(KINDS).map(([kind, name]) =>
    h("tr", {}, h("th", { scope: "row" }, tasks()[task] ?? task), h("td", { class: "left" }, name),
      h("td", { class: "left" }, kinds[kind] ? kinds[kind].map((value) => value.toFixed(3)).join(", ") : "not measured"))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Canonical correlations" },
    h("table", {},
      h("thead", {}, h("tr", {}, ["task", "correlations", "first values"].map((name, i) => h("th", { scope: "col", class: i ? "left" : "" }, name)))),
      h("tbody", {}, rows)));
}

function maps(model) {
  if (!model.path) return h("p", { class: "note" }, "The regularisation was not selected on a grid, so there are no scores to show.");
  return h("div", {},
    h("div", { class: "charts" }, Object.entries(tasks()).map(([task, title]) => heatMap(model.path, task, title))),
    h("p", { class: "scale" }, h("span", {}, "lowest"), legend(), h("span", {}, "highest")));
}

export function describe(model) {
  return [
    h("h1", { class: "model-name", tabindex: "-1", dir: "auto" }, model.name),
    facts(model),
    h("h2", {}, "Quality"),
    h("p", { class: "note" }, model.facts.quality ?? "Not measured."),
    h("p", { class: "note" }, "r@k is the percentage of queries whose own pair is among the first k hits."),
    recalls(model.facts.metrics),
    h("h2", {}, "Probabilities"),
    calibration(model.calibration),
    ...regularised(model).flat(),
    model.card ? h("details", { class: "card" }, h("summary", {}, "Model card"), h("pre", { tabindex: "0" }, model.card)) : null,
  ].flat().filter(Boolean);
}
