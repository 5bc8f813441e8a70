// Filters: values of metadata, ranges, an expression, and the least probability.

import { histogram } from "./charts.js";
import { by, h, percent, show } from "./dom.js";
import { hasProbabilities } from "./search.js";
import { pieces, t } from "./strings.js";

const MENU = 12;
const LEAST = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9];

const controls = { where: new Map(), from: new Map(), to: new Map() };

/** A copy of texts by key, with one of them changed, or left out if it is empty. */
const changed = (texts, key, text) => {
  const others = Object.entries(texts).filter(([name]) => name !== key);
  return Object.fromEntries(text ? [...others, [key, text]] : others);
};

function select(id, label, options, choose) {
  const field = h("select", { id, onchange: () => choose(field.value) },
    options.map(([value, text]) => h("option", { value, dir: "auto" }, text)));
  return h("span", { class: "filter" }, h("label", { for: id, dir: "auto" }, label), field);
}

/** More values than a menu holds: typed, with suggestions. */
function search(id, label, values, choose) {
  const field = h("input", { id, list: `${id}-values`, type: "search", dir: "auto", placeholder: t("all"), autocomplete: "off", onchange: () => choose(field.value.trim()) });
  return h("span", { class: "filter" }, h("label", { for: id, dir: "auto" }, label), field,
    h("datalist", { id: `${id}-values` }, values.map((value) => h("option", { value: String(value) }))));
}

function range(name, limits, counts, change) {
  const isDay = typeof limits[0] === "string";
  const field = (side, label, limit) => {
    const input = h("input", { type: isDay ? "date" : "number", step: isDay ? null : "any", "aria-label": label,
      placeholder: String(limit), onchange: () => change(side, name, input.value) });
    controls[side].set(name, input);
    return input;
  };
  return h("fieldset", { class: "range" }, h("legend", { dir: "auto" }, name), histogram(counts),
    field("from", t("from"), limits[0]), h("span", { "aria-hidden": "true" }, "–"), field("to", t("to"), limits[1]));
}

/** A condition that this model's metadata may meet, as an example. */
function example(model) {
  const [[least] = []] = Object.entries(model.ranges);
  const [[facet, values] = []] = Object.entries(model.facets);
  return [least && `${least} >= ${JSON.stringify(model.ranges[least][0])}`, facet && `${facet} = ${JSON.stringify(values[0])}`]
    .filter(Boolean).join(" and ");
}

/** Make the controls for the metadata of a model; ``change`` takes a function of the state. */
export function offerFilters(model, change) {
  const set = (side, key, text) => change((state) => ({ [side]: changed(state[side], key, text) }));
  show(by("filters"),
    Object.entries(model.facets).map(([key, values], at) => {
      const choose = (value) => set("where", key, value);
      const made = values.length > MENU ? search(`filter-${at}`, key, values, choose)
        : select(`filter-${at}`, key, [["", t("all")], ...values.map((value) => [String(value), String(value)])], choose);
      controls.where.set(key, made.querySelector("select, input"));
      return made;
    }),
    select("least", t("probability"), [["", t("any")], ...LEAST.map((value) => [String(value), `≥ ${percent(value)}`])],
      (value) => change(() => ({ least: Number(value) || null }))));
  show(by("ranges"), Object.entries(model.ranges).map(([key, limits]) => range(key, limits, model.histograms[key], set)));
  by("open-filter").hidden = !model.keys.length;
  by("filter").placeholder = example(model);
  show(by("filter-hint"), pieces("keys", { keys: model.keys.flatMap((key, at) => [at ? ", " : "", h("bdi", {}, key)]) }).flat());
}

export function listenToFilters(change) {
  const apply = () => change(() => ({ filter: by("filter").value.trim() }));
  by("open-filter").addEventListener("click", () => openFilters(by("filter-panel").hidden));
  by("filter").addEventListener("change", apply);
  by("filter-panel").addEventListener("submit", (event) => {
    event.preventDefault();
    apply();
  });
}

function openFilters(isOpen) {
  by("filter-panel").hidden = !isOpen;
  by("open-filter").setAttribute("aria-expanded", String(isOpen));
}

/** Show the filters of the state in the controls. */
export function showFilters(state, model) {
  for (const [side, fields] of Object.entries(controls)) {
    fields.forEach((field, key) => {
      if (field !== document.activeElement) field.value = Object.hasOwn(state[side], key) ? state[side][key] : "";
    });
  }
  const least = by("least");
  least.value = state.least ?? "";
  least.parentElement.hidden = !hasProbabilities(state, model);
  if (by("filter") !== document.activeElement) by("filter").value = state.filter;
  if (state.filter || Object.keys({ ...state.from, ...state.to }).length) openFilters(true);
  showFilterError("");
}

/** Show what the server says of a filter beside it. */
export function showFilterError(message) {
  by("filter-error").textContent = message;
  if (message) openFilters(true);
  if (message) by("filter").setAttribute("aria-invalid", "true");
  else by("filter").removeAttribute("aria-invalid");
}
