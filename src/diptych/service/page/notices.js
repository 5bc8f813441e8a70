// The states that are no results: nothing asked, nothing found, something wrong.

import { toCaption, toPicture, write } from "./address.js";
import { h, isolated } from "./dom.js";
import { frame } from "./results.js";

export function notice(title, detail, ...actions) {
  return h("div", { class: "notice" },
    h("p", { class: "notice-title" }, title),
    detail ? h("p", {}, detail) : null,
    actions.length ? h("p", { class: "actions" }, actions) : null);
}

export const button = (words, act) => h("button", { type: "button", class: "button", onclick: act }, words);

export const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}`;

export function trouble(problem, again, state, clear) {
  if (problem.kind === "unknown-item") {
    return notice("This is not in the index", "It may have been removed since the link was made.");
  }
  if (problem.kind === "bad-input" && problem.message.includes("no word")) {
    const words = problem.message.match(/knows: (.*?);/)?.[1];
    return notice("No word the model knows",
      `It has not met ${words ? isolated(words) : "these words"} in the sentences it was fitted on. Try others, or begin with an example.`);
  }
  if (problem.kind === "bad-input" && problem.message.startsWith("where names")) return nothingFound(state, clear);
  if (problem.status === 0) return notice("The server does not answer", problem.message, button("Try again", again));
  if (problem.status === 503) {
    return notice("The server is busy", "Many are asking at once; it will be with you shortly.", button("Try again", again));
  }
  if (problem.status === 413 || problem.kind === "unreadable-picture") {
    return notice("This picture cannot be opened", sentence(problem.message));
  }
  if (problem.status >= 500) return notice("Something went wrong", sentence(problem.message), button("Try again", again));
  return notice("This cannot be answered", sentence(problem.message));
}

export function nothingFound(state, clear) {
  const filtered = Object.keys(state.where).length > 0;
  return notice("Nothing found",
    filtered ? "No item of the index fits the filter." : "The index holds nothing to find.",
    ...(filtered ? [button("Remove the filter", clear)] : []));
}

/** Which words of a query were left out, since the model does not know them; null: none. */
export function ignored(words) {
  if (!words?.length) return null;
  const named = words.slice(0, 10).flatMap((word, at) => [at ? ", " : "", h("bdi", {}, word)]);
  const more = words.length > 10 ? ` and ${words.length - 10} more` : "";
  return h("p", { class: "note ignored" }, "Searched without words the model does not know: ", named, `${more}.`);
}

export function sentences(model, state) {
  const some = model.examples.text;
  if (!some.length) return null;
  return h("div", { class: "begin" },
    h("h3", {}, model.can.text === null ? "For example" : "Begin with a caption of the index"),
    h("ul", { class: "examples" }, some.slice(0, 6).map((one) =>
      h("li", {}, h("a", { href: write(toCaption(state, one.id)), "data-caption": one.id, dir: "auto" }, one.text ?? one.id)))));
}

export function samples(model, state) {
  const some = model.examples.image;
  if (!some.length) return null;
  return h("div", { class: "begin" },
    h("h3", {}, "Or begin with one of these"),
    h("ul", { class: "samples" }, some.map((one) =>
      h("li", {}, h("a", { href: write(toPicture(state, one.id)), "data-image": one.id, "aria-label": `Sentences for the picture ${isolated(one.id)}` },
        frame(one.id, true, one.id, { lazy: false }))))));
}

export function tokenForm(enter) {
  const field = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const said = h("p", { class: "wrong", role: "alert" });
  const form = h("form", { class: "notice token" },
    h("p", { class: "notice-title" }, "This server asks for a token"),
    h("label", { for: "token" }, "Whoever started it can tell you."), field,
    h("button", { type: "submit", class: "button" }, "Enter"), said);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    said.textContent = await enter(field.value);
  });
  return form;
}

