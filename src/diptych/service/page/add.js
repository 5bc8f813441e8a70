// Adding files to the library: the one that is the query, or several that were dropped or chosen together.

import { api, Problem, upload } from "./api.js";
import { h, number } from "./dom.js";
import { button } from "./notices.js";
import { capitalise, counted } from "./words.js";

/** Browsers give every pasted image the same name. */
const idOf = (file) => (/^(image\.\w+)?$/.test(file.name) ? `${new Date(file.lastModified).toISOString()} ${file.name}`.trim() : file.name);

/** Add a file under its name; return the id. */
export async function addFile(file, model) {
  const limit = model.limits.upload_bytes;
  if (file.size > limit) throw new Problem(413, "too-large", sizeMessage(file, limit));
  return (await api.add(upload(file, { id: idOf(file) }))).image;
}

export const sizeMessage = (file, limit) => `it has ${(file.size / 2 ** 20).toFixed(0)} MB; the limit is ${(limit / 2 ** 20).toFixed(0)} MB.`;

const reason = (problem) => (problem.kind === "taken" ? "an item with this name is there already." : problem.message);

/** Ask whether to add files, and add them one by one; ``done`` is called at the end if there are new items. */
export function addFiles(files, model, done) {
  const title = `Add ${counted(files.length, "image")}`;
  const bar = h("progress", { max: files.length, value: 0, "aria-label": title, hidden: true });
  const result = h("p", { class: "note", role: "status" });
  const errors = h("ul", { class: "errors", tabindex: "0", "aria-label": "Not added", hidden: true });
  const [start, close] = [button("Add", () => { work = add(); }), button("Cancel", () => dialog.close())];
  const dialog = h("dialog", { class: "small", "aria-label": title }, h("h2", {}, title), bar, result, errors, h("p", { class: "choices" }, start, close));
  let added = 0;
  let work = null;
  async function add() {
    start.remove();
    bar.hidden = false;
    close.textContent = "Stop";
    close.focus();
    for (const [at, file] of files.entries()) {
      if (!dialog.open) return;
      try {
        await addFile(file, model);
        added += 1;
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        errors.hidden = false;
        errors.append(h("li", {}, h("bdi", {}, file.name), `: ${reason(problem)}`));
      }
      bar.value = at + 1;
    }
    result.textContent = `${number(added)} of ${counted(files.length, "image")} added.`;
    close.textContent = "Close";
  }
  dialog.addEventListener("close", async () => {
    dialog.remove();
    await work;
    if (added) done();
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** Add the file that is the query; ``done`` is called with its id. */
export async function addQuery(pressed, file, model, done) {
  if (pressed.getAttribute("aria-busy")) return;
  pressed.setAttribute("aria-busy", "true");
  try {
    done(await addFile(file, model));
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    const error = h("p", { class: "wrong", role: "alert" });
    pressed.closest("figure").querySelector(".wrong")?.remove();
    pressed.parentElement.after(error);
    error.textContent = capitalise(reason(problem));
  } finally {
    pressed.removeAttribute("aria-busy");
  }
}
