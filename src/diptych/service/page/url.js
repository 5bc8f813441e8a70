// The state of the page as a URL that can be shared, and back.

export const STEP = 12;

/** What the page shows in place of a search. */
export const SECTIONS = ["pairs", "model"];

/** Filters by metadata: a value, the least, and the most, of each key. */
const FILTERS = ["where", "from", "to"];

export const NO_FILTER = { where: {}, from: {}, to: {}, filter: "", least: null };

const numberIn = (text, most) => {
  const value = Number.parseFloat(text ?? "");
  return value > 0 && value <= most ? value : null;
};

export function read(location) {
  const query = new URLSearchParams(location.search);
  const keyed = (prefix) => Object.fromEntries(
    [...query].filter(([name]) => name.startsWith(prefix)).map(([name, value]) => [name.slice(prefix.length), value]));
  const parts = [...query].flatMap(([name, value]) => {
    const [, sign, isId] = /^(plus|minus)(\.id)?$/.exec(name) ?? [];
    return sign && value.trim() ? [{ sign, [isId ? "id" : "text"]: value }] : [];
  });
  const [caption, image] = [query.get("caption"), query.get("image")];
  return {
    section: SECTIONS.find((name) => location.hash === `#${name}`) ?? null,
    q: query.get("q") ?? "",
    caption,
    image,
    input: query.get("input") ?? "",
    similar: query.get("similar") === "1" && Boolean(image || caption),
    parts,
    compare: query.get("compare") === "1",
    k: Math.floor(numberIn(query.get("k"), Infinity) ?? 0) || STEP,
    item: query.get("item"),
    by: query.get("by"),
    rising: query.get("rising") === "1",
    filter: query.get("filter") ?? "",
    least: numberIn(query.get("least"), 1),
    ...Object.fromEntries(FILTERS.map((name) => [name, keyed(`${name}.`)])),
  };
}

export function write(state) {
  const query = new URLSearchParams();
  if (state.image) query.set("image", state.image);
  else if (state.input) query.set("input", state.input);
  else if (state.caption) query.set("caption", state.caption);
  else if (state.q) query.set("q", state.q);
  if (state.similar && !state.upload) query.set("similar", "1");
  for (const { sign, text, id } of state.parts) query.append(id ? `${sign}.id` : sign, id ?? text);
  if (state.compare) query.set("compare", "1");
  if (state.k !== STEP) query.set("k", state.k);
  for (const name of FILTERS) {
    for (const [key, value] of Object.entries(state[name])) query.set(`${name}.${key}`, value);
  }
  if (state.filter) query.set("filter", state.filter);
  if (state.least) query.set("least", state.least);
  if (state.by) query.set("by", state.by);
  if (state.rising) query.set("rising", "1");
  if (state.item) query.set("item", state.item);
  const search = query.toString();
  return `./${search ? `?${search}` : ""}${state.section ? `#${state.section}` : ""}`;
}

export const withoutQuery = (state) => ({
  ...state, section: null, item: null, q: "", caption: null, image: null, input: "", upload: null, similar: false, parts: [], k: STEP,
});

export const toImage = (state, id) => ({ ...withoutQuery(state), image: id });
export const toCaption = (state, id) => ({ ...withoutQuery(state), caption: id });
export const toInput = (state, input) => ({ ...withoutQuery(state), input });
export const toText = (state, q) => ({ ...withoutQuery(state), q });
export const toSimilar = (state, { view, id }) =>
  ({ ...(view === "image" ? toImage : toCaption)(state, id), similar: true, compare: false });

/** Add a part to the query, in place of the same one with either sign. */
export const withPart = (state, part) => 
  ({ ...withoutPart(state, part), item: null, parts: [...withoutPart(state, part).parts, part] });

export const withoutPart = (state, { text, id }) =>
  ({ ...state, k: STEP, parts: state.parts.filter((each) => each.text !== text || each.id !== id) });

/** Whether two states show the same, whichever item is open. */
export const isSameList = (a, b) => a.upload === b.upload && write({ ...a, item: null }) === write({ ...b, item: null });

export const isFiltered = (state) =>
  Boolean(state.filter || state.least || FILTERS.some((name) => Object.keys(state[name]).length));
