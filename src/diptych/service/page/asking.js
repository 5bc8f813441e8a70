// From what is looked at to what was found.

import { api, upload } from "./api.js";
import { WEIGHTINGS } from "./compare.js";

export function modeOf(state) {
  if (state.image || state.upload) return "annotate";
  return state.caption || state.q.trim() ? "search" : "empty";
}

/** Values of a filter come from an address as words; the index may hold numbers. */
function filter(state, model) {
  const names = Object.keys(state.where);
  if (!names.length) return null;
  return Object.fromEntries(names.map((name) => {
    const values = Object.hasOwn(model.facets, name) ? model.facets[name] : [];
    const known = values.find((value) => String(value) === state.where[name]);
    return [name, known ?? state.where[name]];
  }));
}

function question(state, model, signal) {
  const common = { k: Math.min(state.k, model.limits.k), where: filter(state, model) };
  return (weighting) => {
    const asked = { ...common, weighting };
    if (state.upload) return api.annotate(upload(state.upload, asked), signal);
    if (state.image) return api.annotate({ ...asked, id: state.image }, signal);
    if (state.caption) return api.search({ ...asked, id: state.caption }, signal);
    return api.search({ ...asked, text: state.q.trim() }, signal);
  };
}

/** The answers, the item that was asked with where it is one, and the ids that would be right. */
export async function ask(state, model, signal) {
  const one = question(state, model, signal);
  const id = state.image ?? state.caption;
  const [item, ...found] = await Promise.all([
    id ? api.item(id, signal) : null,
    ...(state.compare ? WEIGHTINGS.map(({ name }) => one(name)) : [one(null)]),
  ]);
  const right = item?.view === "text" ? [item.image] : (item?.captions ?? []).map((caption) => caption.id);
  return { item, found, own: new Set(right.filter(Boolean)) };
}
