// A form for the captions and the metadata of an item.

import { api, Problem } from "./api.js";
import { h } from "./dom.js";
import { t } from "./strings.js";
import { capitalise, many, nounOf, one } from "./words.js";

const KINDS = { text: "kindText", number: "kindNumber", boolean: "kindBoolean" };

const kindOf = (value) => ({ string: "text", number: "number", boolean: "boolean" })[typeof value] ?? "list";

/** The value of a text that a person has typed; undefined: it is none of this kind. */
function parse(kind, text) {
  if (kind === "text") return text;
  try {
    return kind === "number" ? Number(text) : JSON.parse(text);
  } catch {
    return undefined;
  }
}

function valueField(kind, label, value) {
  const text = value === undefined ? "" : kind === "list" ? JSON.stringify(value) : String(value);
  if (kind === "boolean") {
    return h("select", { "aria-label": label }, [["true", "yes"], ["false", "no"]].map(([each, name]) =>
      h("option", { value: each, selected: each === text }, t(name))));
  }
  const check = ({ target }) =>
    target.setCustomValidity(parse(kind, target.value) === undefined ? t("listExpected") : "");
  return h("input", { type: kind === "number" ? "number" : "text", step: kind === "number" ? "any" : null, value: text, dir: "auto",
    required: kind !== "text", "aria-label": label, autocomplete: "off", oninput: check });
}

/** A list of rows with fields, of which each can be removed; ``add`` makes the fields of a new one. */
function rows(title, addLabel, add) {
  const list = h("ul");
  const adder = add && h("button", { type: "button", class: "switch", onclick: () => put(add()).querySelector("input, textarea").focus() }, addLabel);
  const put = ({ fields, name, remove }) => {
    const row = h("li", {}, fields, h("button", {
      type: "button", class: "quiet-button", "aria-label": t("removeOf", { name }), title: t("remove"),
      onclick: () => {
        remove();
        const next = (row.nextElementSibling ?? row.previousElementSibling)?.querySelector(".quiet-button") ?? adder;
        row.remove();
        next?.focus();
      },
    }, "×"));
    list.append(row);
    return row;
  };
  return { put, shown: h("fieldset", {}, h("legend", {}, title), list, adder) };
}

const without = (all, gone) => all.splice(all.indexOf(gone), 1);

function captionRows(item, model) {
  const [texts, removed] = [[], []];
  const canWrite = model.can.text === null;
  let count = 0;
  const make = (id, before) => {
    count += 1;
    const name = `${one("caption")} ${count}`;
    const field = h("textarea", { rows: 1, dir: "auto", required: true, readonly: !canWrite, "aria-label": capitalise(name) }, before);
    const text = { id, before, field };
    texts.push(text);
    return { fields: field, name, remove: () => {
      without(texts, text);
      if (text.id) removed.push(text.id);
    } };
  };
  const { put, shown } = rows(capitalise(many("caption")), t("addNoun", nounOf(one("caption"))), canWrite && (() => make(null, "")));
  for (const { id, text } of item.captions ?? []) if (text) put(make(id, text));
  async function save() {
    for (const text of texts) {
      const now = text.field.value;
      if (!text.id) [text.id] = (await api.learn(now, item.id)).learned;
      else if (now !== text.before) await api.update(text.id, { text: now });
      text.before = now;
    }
    while (removed.length) {
      await api.remove(removed[0]).catch((problem) => { if (problem.kind !== "unknown-item") throw problem; });
      removed.shift();
    }
  }
  return { shown, save, fields: () => texts.map(({ field }) => field) };
}

function metadataRows(item) {
  const [values, removed] = [[], []];
  const make = (key, value) => {
    const kind = kindOf(value);
    const entry = { key, kind, field: valueField(kind, key, value) };
    entry.before = entry.field.value;
    values.push(entry);
    return { fields: [h("span", { class: "key-name", dir: "auto" }, key), entry.field], name: key, remove: () => {
      without(values, entry);
      removed.push(key);
    } };
  };
  const makeNew = () => {
    const entry = { kind: "text", field: valueField("text", t("value")), before: null };
    const key = h("input", { type: "text", required: true, dir: "auto", "aria-label": t("name"), placeholder: t("name"), autocomplete: "off", oninput: () => {
      entry.key = key.value.trim();
      key.setCustomValidity(values.some((each) => each !== entry && each.key === entry.key) ? t("nameTaken") : "");
    } });
    const kind = h("select", { "aria-label": t("kind"), onchange: () => {
      entry.kind = kind.value;
      const field = valueField(entry.kind, t("value"));
      entry.field.replaceWith(field);
      entry.field = field;
    } }, Object.entries(KINDS).map(([value, name]) => h("option", { value }, t(name))));
    values.push(entry);
    return { fields: [key, kind, entry.field], name: t("thisValue"), remove: () => without(values, entry) };
  };
  const { put, shown } = rows(t("metadata"), t("addValue"), makeNew);
  for (const [key, value] of Object.entries(item.metadata)) if (value !== null) put(make(key, value));
  async function save() {
    const metadata = Object.fromEntries([
      ...removed.map((key) => [key, null]),
      ...values.filter(({ field, before }) => field.value !== before).map(({ key, kind, field }) => [key, parse(kind, field.value)]),
    ]);
    if (Object.keys(metadata).length) await api.update(item.id, { metadata });
  }
  return { shown, save };
}

/** A form for an item; ``done`` is called when it was saved or is to be closed. */
export function editItem(item, model, done) {
  const [captions, metadata] = [captionRows(item, model), metadataRows(item)];
  const error = h("p", { class: "wrong", role: "alert" });
  const form = h("form", { class: "edit", "aria-labelledby": "item-title" },
    h("h2", { id: "item-title" }, t("edit")),
    item.view === "image" && model.items.text + (model.can.text === null) > 0 ? captions.shown : null, metadata.shown, error,
    h("p", { class: "choices" }, h("button", { type: "submit", class: "button" }, t("save")), h("button", { type: "button", class: "switch", onclick: () => done(false) }, t("cancel"))));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    for (const field of captions.fields()) field.value = field.value.trim();
    if (form.getAttribute("aria-busy") || !form.reportValidity()) return;
    form.setAttribute("aria-busy", "true");
    error.textContent = "";
    try {
      await captions.save();
      await metadata.save();
      done(true);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      error.textContent = capitalise(problem.message);
    } finally {
      form.removeAttribute("aria-busy");
    }
  });
  return form;
}
