// Adding files to the library: the one that is the query, or several that were dropped or chosen together.

import { api, Problem, upload } from "./api.js";
import { h, number } from "./dom.js";
import { button } from "./notices.js";
import { pieces, t } from "./strings.js";
import { capitalise, counted } from "./words.js";

/** Browsers give every pasted image the same name. */
const idOf = (file) => (/^(image\.\w+)?$/.test(file.name) ? `${new Date(file.lastModified).toISOString()} ${file.name}`.trim() : file.name);

/** Add a file under its name; return the id. */
export async function addFile(file, model) {
  const limit = model.limits.upload_bytes;
  if (file.size > limit) throw new Problem(413, "too-large", sizeMessage(file, limit));
  return (await api.add(upload(file, { id: idOf(file) }))).image;
}

export const sizeMessage = (file, limit) => t("tooLarge", { size: number(Math.round(file.size / 2 ** 20)), limit: number(Math.round(limit / 2 ** 20)) });

const reason = (problem) => (problem.kind === "taken" ? t("itemTaken") : problem.message);

/** Ask whether to add files, and add them one by one; ``done`` is called at the end if there are new items. */
export function addFiles(files, model, done) {
  const title = t("addCount", { count: counted(files.length, "image") });
  const bar = h("progress", { max: files.length, value: 0, "aria-label": title, hidden: true });
  const result = h("p", { class: "note", role: "status" });
  const errors = h("ul", { class: "errors", tabindex: "0", "aria-label": t("notAdded"), hidden: true });
  const [start, close] = [button(t("add"), () => { work = add(); }), button(t("cancel"), () => dialog.close())];
  const dialog = h("dialog", { class: "small", "aria-label": title }, h("h2", {}, title), bar, result, errors, h("p", { class: "choices" }, start, close));
  let added = 0;
  let work = null;
  async function add() {
    start.remove();
    bar.hidden = false;
    close.textContent = t("stop");
    close.focus();
    for (const [at, file] of files.entries()) {
      if (!dialog.open) return;
      try {
        await addFile(file, model);
        added += 1;
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        errors.hidden = false;
        errors.append(h("li", {}, pieces("labelled", { name: h("bdi", {}, file.name), label: reason(problem) })));
      }
      bar.value = at + 1;
    }
    result.textContent = t("addedCount", { n: number(added), count: counted(files.length, "image") });
    close.textContent = t("close");
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
