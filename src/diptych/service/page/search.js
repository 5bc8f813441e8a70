// Searches: from the state of the page to the responses of the server.

import { api, upload } from "./api.js";
import { choices } from "./compare.js";

export function modeOf(state) {
  if (state.image || state.upload || state.input.trim()) return "annotate";
  return state.caption || state.q.trim() ? "search" : "empty";
}

/** Values of a filter are strings in a URL; the metadata may have numbers. */
function filter(state, model) {
  const names = Object.keys(state.where);
  if (!names.length) return null;
  return Object.fromEntries(names.map((name) => {
    const values = Object.hasOwn(model.facets, name) ? model.facets[name] : [];
    const known = values.find((value) => String(value) === state.where[name]);
    return [name, known ?? state.where[name]];
  }));
}

function searcher(state, model, signal) {
  const common = { k: Math.min(state.k, model.limits.k), where: filter(state, model) };
  return (weighting) => {
    const body = { ...common, weighting };
    if (state.upload) return api.annotate(upload(state.upload, body), signal);
    if (state.image) return api.annotate({ ...body, id: state.image }, signal);
    if (state.input.trim()) return api.annotate({ ...body, text: state.input.trim() }, signal);
    if (state.caption) return api.search({ ...body, id: state.caption }, signal);
    return api.search({ ...body, text: state.q.trim() }, signal);
  };
}

/** Returns the responses, the stored item that is the query (if it is one), and the ids of its own pairs. */
export async function runSearch(state, model, signal) {
  const search = searcher(state, model, signal);
  const id = state.image ?? state.caption;
  const [item, ...responses] = await Promise.all([
    id ? api.item(id, signal) : null,
    ...(state.compare ? choices(model, modeOf(state)).map(({ name }) => search(name)) : [search(null)]),
  ]);
  const pairs = item?.view === "text" ? [item.image] : (item?.captions ?? []).map((caption) => caption.id);
  return { item, responses, own: new Set(pairs.filter(Boolean)) };
}
