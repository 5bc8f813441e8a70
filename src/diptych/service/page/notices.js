// What the page shows in place of results: examples, empty results, errors, the form for the token.

import { isFiltered, toCaption, write } from "./url.js";
import { h, number } from "./dom.js";
import { pieces, t } from "./strings.js";
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
    return notice(t("noItem"), t("noItemWhy"));
  }
  if (problem.kind === "bad-input" && problem.message.includes("no word that the model knows")) {
    return notice(t("noWords"), t("noWordsWhy"));
  }
  if (problem.kind === "bad-filter") return notice(t("badFilter"), null, ...filterButton(state, clear));
  if (problem.status === 0) return notice(t("noAnswer"), problem.message, button(t("tryAgain"), again));
  if (problem.status === 503) {
    return notice(t("busy"), t("busyWhy"), button(t("tryAgain"), again));
  }
  if (problem.status === 413 || ["unreadable-image", "unreadable-file"].includes(problem.kind)) {
    return notice(t("notOpened", { noun: name("image") }), capitalise(problem.message));
  }
  if (problem.status >= 500) return notice(t("defect"), capitalise(problem.message), button(t("tryAgain"), again));
  return notice(t("notPossible"), capitalise(problem.message), ...filterButton(state, clear));
}

const filterButton = (state, clear) => (isFiltered(state) ? [button(t("removeFilter"), clear)] : []);

export function noResults(state, clear) {
  const why = t(state.least ? "noneLikely" : isFiltered(state) ? "noneFiltered" : "noneStored");
  return notice(t("noResults"), why, ...filterButton(state, clear));
}

/** Name the words of a query that the model does not know and ignored; null: none. */
export function ignored(words) {
  if (!words?.length) return null;
  const named = words.slice(0, 10).flatMap((word, at) => [at ? ", " : "", h("bdi", {}, word)]);
  const all = words.length > 10 ? pieces("andMore", { words: named, n: number(words.length - 10) }).flat() : named;
  return h("p", { class: "note ignored" }, pieces("ignored", { words: all }));
}

export function exampleTexts(model, state) {
  const some = model.examples.text;
  if (!some.length) return null;
  return h("div", { class: "begin" },
    h("h3", {}, model.can.text === null ? t("forExample") : t("startWith", { noun: one("caption") })),
    h("ul", { class: "examples" }, some.slice(0, 6).map((item) =>
      h("li", {}, h("a", { href: write(toCaption(state, item.id)), "data-caption": item.id, dir: "auto" }, item.text ?? item.id)))));
}

export function tokenForm(enter) {
  const field = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const error = h("p", { class: "wrong", role: "alert" });
  const form = h("form", { class: "notice token" },
    h("p", { class: "notice-title" }, t("needsToken")),
    h("label", { for: "token" }, t("askToken")), field,
    h("button", { type: "submit", class: "button" }, t("enterToken")), error);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    error.textContent = await enter(field.value);
  });
  return form;
}

