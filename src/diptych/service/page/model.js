// The model tab: what the model is, how good it is, how it was selected.

import { heatMap, legend, spectrum } from "./charts.js";
import { decimal, h, number } from "./dom.js";
import { describeRefit } from "./learn.js";
import { t } from "./strings.js";
import { capitalise, counted, many, name, tasks } from "./words.js";

const COLUMNS = { "r@1": "r@1", "r@5": "r@5", "r@10": "r@10", median_rank: t("medianRank"), mean_rank: t("meanRank") };

function facts(model) {
  const pairs = model.facts.pairs ?? {};
  const sizes = (n, m) => `${counted(n, "image")}, ${counted(m, "caption")}`;
  const fitted = pairs.train ? sizes(...pairs.train) : t("unknown");
  const encoder = (view) => t("encoderIs", { name: model.encoders[view].name || t("precomputed"), n: number(model.encoders[view].dimension) });
  return h("dl", { class: "facts" }, [
    [t("inIndex"), sizes(model.items.image, model.items.text)],
    [t("fittedOn"), fitted],
    ...(model.facts.refitted ? [[t("refitted"), describeRefit(model)]] : []),
    [t("encoder", { View: capitalise(name("image")) }), encoder("image")],
    [t("encoder", { View: capitalise(name("text")) }), encoder("text")],
    [t("weighting"), model.weighting],
    [t("selectedOn"), model.facts.selection?.pairs ?? t("nothing")],
    [t("version"), `${model.version}, diptych ${model.library}`],
  ].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", { dir: "auto" }, value))));
}

/** How good the probabilities are, for each task, or why there are none. */
function calibration(measured) {
  if (measured.absent) return h("p", { class: "note" }, measured.absent);
  const on = Object.values(measured).find((task) => task.on)?.on;
  const shown = (value) => (typeof value === "number" ? decimal(value, 3) : "–");
  const rows = Object.entries(tasks()).map(([task, title]) => {
    const { absent, method, ece } = measured[task] ?? { absent: t("notMeasuredValue") };
    return h("tr", {}, h("th", { scope: "row" }, title), absent ? h("td", { class: "left wrap", colspan: 2 }, absent)
      : [h("td", { class: "left" }, method), h("td", { class: "strong" }, shown(ece))]);
  });
  return [
    h("p", { class: "note" }, t("aboutEce") + (on ? t("measuredOn", { on }) : "")),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": t("probabilitiesTitle") }, h("table", {},
      h("thead", {}, h("tr", {}, [t("task"), t("method"), "ECE"].map((name, i) =>
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
        const label = typeof value === "number" ? decimal(value, name === "median_rank" ? 0 : 1) : "–";
        return h("td", { class: name === "r@1" ? "strong" : "" }, label);
      }))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": t("recalls") },
    h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("pairsColumn")), h("th", { scope: "col", class: "left" }, t("task")),
        Object.values(COLUMNS).map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows)));
}

/** The parts of a fusion. */
function parts(model) {
  return Object.entries(tasks()).map(([task, title]) => h("div", { class: "parts" }, h("h3", {}, title),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": t("partsOf", { task: title }) }, h("table", {},
      h("thead", {}, h("tr", {}, [t("part"), t("weight"), t("comparedBy"), t("components")].map((name, i) =>
        h("th", { scope: "col", class: i === 2 ? "left" : "" }, name)))),
      h("tbody", {}, model.parts[task].map((part) => h("tr", {}, h("th", { scope: "row" }, h("bdi", {}, part.name)),
        h("td", { class: "strong" }, decimal(part.weight, 2)), h("td", { class: "left" }, part.use),
        h("td", {}, number(part.components))))))),
    h("p", { class: "note" }, t("correction", { about: model.corrections[task] }))));
}

function regularised(model) {
  if (model.weighting === "fusion") {
    return [h("h2", {}, t("parts")),
      h("p", { class: "note" }, t("aboutParts")), parts(model)];
  }
  const chosen = (task) => t("chosen", { x: model.filters[task][0], y: model.filters[task][1], first: many("image"), second: many("text") });
  return [h("h2", {}, t("regularisation")),
    h("p", { class: "note" }, t("aboutGrid", { search: chosen("search"), annotate: chosen("annotate") })),
    maps(model),
    h("h2", {}, t("spectrum")),
    h("p", { class: "note" }, t("aboutSpectrum")),
    spectrum(model.spectrum, tasks()),
    correlations(model.correlations)];
}

const KINDS = { correlations: t("regularised"), train_correlations: t("onTraining"), validation_correlations: t("onValidation") };

/** Correlations of the first canonical variates beside Σ; those on validation pairs are the unbiased ones. */
function correlations(measured) {
  const rows = Object.entries(measured ?? {}).flatMap(([task, kinds]) => Object.entries(KINDS).map(([kind, name]) =>
    h("tr", {}, h("th", { scope: "row" }, tasks()[task] ?? task), h("td", { class: "left" }, name),
      h("td", { class: "left" }, kinds[kind] ? kinds[kind].map((value) => decimal(value, 3)).join(", ") : t("notMeasuredValue")))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": t("correlationsTitle") },
    h("table", {},
      h("thead", {}, h("tr", {}, [t("task"), t("correlations"), t("firstValues")].map((name, i) => h("th", { scope: "col", class: i ? "left" : "" }, name)))),
      h("tbody", {}, rows)));
}

function maps(model) {
  if (!model.path) return h("p", { class: "note" }, t("noGrid"));
  return h("div", {},
    h("div", { class: "charts" }, Object.entries(tasks()).map(([task, title]) => heatMap(model.path, task, title))),
    h("p", { class: "scale" }, h("span", {}, t("lowest")), legend(), h("span", {}, t("highest"))));
}

export function describe(model) {
  return [
    h("h1", { class: "model-name", tabindex: "-1", dir: "auto" }, model.name),
    facts(model),
    h("h2", {}, t("quality")),
    h("p", { class: "note" }, model.facts.quality ?? t("notMeasured")),
    h("p", { class: "note" }, t("aboutRecalls")),
    recalls(model.facts.metrics),
    h("h2", {}, t("probabilitiesTitle")),
    calibration(model.calibration),
    ...regularised(model).flat(),
    model.card ? h("details", { class: "card" }, h("summary", {}, t("card")), h("pre", { tabindex: "0" }, model.card)) : null,
  ].flat().filter(Boolean);
}
