// The state of the page as a URL that can be shared, and back.

export const STEP = 12;

const FILTER = "where.";

export function read(location) {
  const query = new URLSearchParams(location.search);
  const filters = [...query].filter(([name]) => name.startsWith(FILTER));
  const where = Object.fromEntries(filters.map(([name, value]) => [name.slice(FILTER.length), value]));
  const k = Number.parseInt(query.get("k") ?? "", 10);
  return {
    model: location.hash === "#model",
    q: query.get("q") ?? "",
    caption: query.get("caption"),
    image: query.get("image"),
    input: query.get("input") ?? "",
    compare: query.get("compare") === "1",
    k: Number.isFinite(k) && k > 0 ? k : STEP,
    where,
  };
}

export function write(state) {
  const query = new URLSearchParams();
  if (state.image) query.set("image", state.image);
  else if (state.input) query.set("input", state.input);
  else if (state.caption) query.set("caption", state.caption);
  else if (state.q) query.set("q", state.q);
  if (state.compare) query.set("compare", "1");
  if (state.k !== STEP) query.set("k", state.k);
  for (const [name, value] of Object.entries(state.where)) query.set(FILTER + name, value);
  const search = query.toString();
  return `./${search ? `?${search}` : ""}${state.model ? "#model" : ""}`;
}

export const withoutQuery = (state) => ({
  ...state, model: false, q: "", caption: null, image: null, input: "", upload: null, k: STEP,
});

export const toImage = (state, id) => ({ ...withoutQuery(state), image: id });
export const toCaption = (state, id) => ({ ...withoutQuery(state), caption: id });
export const toInput = (state, input) => ({ ...withoutQuery(state), input });
export const toText = (state, q) => ({ ...withoutQuery(state), q });
