// What the page shows in place of results: examples, empty results, errors, the form for the token.

import { isFiltered, toCaption, write } from "./url.js";
import { h } from "./dom.js";
import { capitalise, name, one } from "./words.js";

export function notice(title, detail, ...actions) {
  return h("div", { class: "notice" },
    h("p", { class: "notice-title" }, title),
    detail ? h("p", {}, detail) : null,
    actions.length ? h("p", { class: "actions" }, actions) : null);
}

export const button = (label, act) => h("button", { type: "button", class: "button", onclick: act }, label);

export function errorNotice(problem, again, state, clear) {
  if (problem.kind === "unknown-item") {
    return notice("This item does not exist", "It may have been removed since the link was made.");
  }
  if (problem.kind === "bad-input" && problem.message.includes("no word that the model knows")) {
    return notice("The model knows none of these words",
      "They are not in the texts it was fitted on. Try others, or start with an example.");
  }
  if (problem.kind === "bad-filter") return notice("This filter is not possible", null, ...filterButton(state, clear));
  if (problem.status === 0) return notice("The server does not answer", problem.message, button("Try again", again));
  if (problem.status === 503) {
    return notice("The server is busy", "Many searches are running; try again shortly.", button("Try again", again));
  }
  if (problem.status === 413 || ["unreadable-image", "unreadable-file"].includes(problem.kind)) {
    return notice(`This ${name("image")} cannot be opened`, capitalise(problem.message));
  }
  if (problem.status >= 500) return notice("Something went wrong", capitalise(problem.message), button("Try again", again));
  return notice("This search is not possible", capitalise(problem.message), ...filterButton(state, clear));
}

const filterButton = (state, clear) => (isFiltered(state) ? [button("Remove the filter", clear)] : []);

export function noResults(state, clear) {
  const why = state.least ? "No item is that likely to be a match." : isFiltered(state) ? "No item matches the filter."
    : "There are no items to search.";
  return notice("No results", why, ...filterButton(state, clear));
}

/** Name the words of a query that the model does not know and ignored; null: none. */
export function ignored(words) {
  if (!words?.length) return null;
  const named = words.slice(0, 10).flatMap((word, at) => [at ? ", " : "", h("bdi", {}, word)]);
  const more = words.length > 10 ? ` and ${words.length - 10} more` : "";
  return h("p", { class: "note ignored" }, "Ignored words that the model does not know: ", named, `${more}.`);
}

export function exampleTexts(model, state) {
  const some = model.examples.text;
  if (!some.length) return null;
  return h("div", { class: "begin" },
    h("h3", {}, model.can.text === null ? "For example" : `Start with a stored ${one("caption")}`),
    h("ul", { class: "examples" }, some.slice(0, 6).map((item) =>
      h("li", {}, h("a", { href: write(toCaption(state, item.id)), "data-caption": item.id, dir: "auto" }, item.text ?? item.id)))));
}

export function tokenForm(enter) {
  const field = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const error = h("p", { class: "wrong", role: "alert" });
  const form = h("form", { class: "notice token" },
    h("p", { class: "notice-title" }, "This server needs a token"),
    h("label", { for: "token" }, "Ask the person who runs it."), field,
    h("button", { type: "submit", class: "button" }, "Enter"), error);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    error.textContent = await enter(field.value);
  });
  return form;
}

