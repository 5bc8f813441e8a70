// Searches: from the state of the page to the responses of the server.

import { api, upload } from "./api.js";
import { choices } from "./compare.js";

/** The view of the query: "image", "text", or null without a query. */
export function viewOf(state) {
  if (state.image || state.upload || state.input.trim()) return "image";
  return state.caption || state.q.trim() ? "text" : null;
}

/** What is shown: images ("search"), captions ("annotate"), or neither ("empty"). */
export function modeOf(state) {
  const view = viewOf(state);
  if (view === null) return "empty";
  return (view === "text") !== state.similar ? "search" : "annotate";
}

/** Only plain queries have probabilities: no others were measured. */
export const hasProbabilities = (state, model) => {
  const measured = model.calibration?.[modeOf(state)];
  return Boolean(measured && !measured.absent) && !state.parts.length && !state.similar && !state.compare;
};

const DAY = /^\d{4}-\d\d-\d\d$/;

/** A limit of a range, typed by a person: a number, or a date. */
const typed = (text) => (Number.isFinite(Number(text)) ? Number(text) : text);

/** At most a day: before the next one, as a time of that day has more characters than the day. */
const atMost = (text) => (DAY.test(text) && Date.parse(text)
  ? { $lt: new Date(Date.parse(text) + 864e5).toISOString().slice(0, 10) } : { $lte: typed(text) });

/** The filter as the server takes it; null without one. */
function filterOf(state, model) {
  // Values of a filter are strings in a URL; the metadata may have numbers.
  const equal = Object.entries(state.where).map(([name, value]) => {
    const values = Object.hasOwn(model.facets, name) ? model.facets[name] : [];
    return [name, values.find((each) => String(each) === value) ?? value];
  });
  const limits = (texts, limit) => Object.entries(texts).filter(([, text]) => text.trim())
    .map(([name, text]) => Object.fromEntries([[name, limit(text.trim())]]));
  const conditions = [
    ...equal.map((entry) => Object.fromEntries([entry])),
    ...limits(state.from, (value) => ({ $gte: typed(value) })),
    ...limits(state.to, atMost),
    ...(state.filter.trim() ? [state.filter.trim()] : []),
  ];
  return conditions.length > 1 ? { $and: conditions } : conditions[0] ?? null;
}

/** Parameters of a listing: items of a view that pass the filter. */
export function listing(state, model, view) {
  const where = filterOf(state, model);
  return { view, ...(where && { where: typeof where === "string" ? where : JSON.stringify(where) }) };
}

const partsOf = (state, sign) => {
  const own = state.parts.filter((part) => part.sign === sign).map(({ id, text }) => (id ? { id } : { text }));
  return own.length ? { [sign]: own } : {};
};

/** An item is the one most similar to itself, and is not shown. */
const hitsItself = (state) => state.similar && !state.upload;

/** The most hits that the server returns for a query, counted as ``state.k``. */
export const mostHits = (state, model) => model.limits.k - Number(hitsItself(state));

function searcher(state, model, signal, offset) {
  const last = Math.min(state.k, mostHits(state, model)) + Number(hitsItself(state));
  const body = {
    k: last - offset, where: filterOf(state, model), ...partsOf(state, "plus"), ...partsOf(state, "minus"),
    ...(offset ? { offset } : {}), ...(state.least && hasProbabilities(state, model) ? { min_probability: state.least } : {}),
  };
  if (state.similar && state.upload) return () => api.similar(upload(state.upload, body), signal);
  if (state.similar) return () => api.similar({ ...body, id: state.image ?? state.caption }, signal);
  return (weighting) => {
    const all = { ...body, weighting };
    if (state.upload) return api.annotate(upload(state.upload, all), signal);
    if (state.image) return api.annotate({ ...all, id: state.image }, signal);
    if (state.input.trim()) return api.annotate({ ...all, text: state.input.trim() }, signal);
    if (state.caption) return api.search({ ...all, id: state.caption }, signal);
    return api.search({ ...all, text: state.q.trim() }, signal);
  };
}

const searches = (state, model, search) =>
  (state.compare ? choices(model, modeOf(state)).map(({ name }) => search(name)) : [search(null)]);

/** Returns the responses, the stored item that is the query (if it is one), those that are parts of it by their
 * ids, the ids of its own pairs, and how many items pass the filter (null: there is none). */
export async function runSearch(state, model, signal) {
  const search = searcher(state, model, signal, 0);
  const id = state.image ?? state.caption;
  const ids = state.parts.map((part) => part.id).filter(Boolean);
  const listed = listing(state, model, modeOf(state) === "search" ? "image" : "text");
  const [count, item, parts, ...responses] = await Promise.all([
    listed.where ? api.list({ ...listed, limit: 1 }, signal) : null,
    id ? api.item(id, signal) : null,
    Promise.all(ids.map((each) => api.item(each, signal))),
    ...searches(state, model, search),
  ]);
  const pairs = item?.view === "text" ? [item.image] : (item?.captions ?? []).map((caption) => caption.id);
  return { item, parts: new Map(parts.map((part) => [part.id, part])), responses, own: new Set(pairs.filter(Boolean)), total: count?.total ?? null };
}

/** Add the next hits, up to ``state.k``, to the results of responses; return whether that was possible.
 *
 * The last hit that is shown is asked for again: if it is another one now, items were added or removed meanwhile, and
 * the next hits would repeat or skip some. */
export async function extendResults(responses, state, model, signal) {
  const shown = responses.map((response) => response.results[0]);
  const offset = Math.max(...shown.map(({ hits }) => hits.length)) - 1;
  const next = await Promise.all(searches(state, model, searcher(state, model, signal, offset)));
  const added = next.map((response) => response.results[0]);
  if (!shown.every(({ hits }, at) => hits[offset]?.id === added[at].hits[0]?.id)) return false;
  shown.forEach((result, at) => {
    result.hits.push(...added[at].hits.slice(1));
    result.more = added[at].more;
  });
  return true;
}
