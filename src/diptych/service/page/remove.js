// Removing items: the request is sent when ten seconds have passed or the page is left; until then it can be undone.

import { api, Problem } from "./api.js";
import { by, h, isolated, show } from "./dom.js";
import { button } from "./notices.js";
import { pieces, t } from "./strings.js";

const SECONDS = 10;

const pending = new Map(); // by id: what sends the request
const hidden = new Set();
const style = new CSSStyleSheet();
document.adoptedStyleSheets.push(style);

export const isRemoved = (id) => hidden.has(id);

/** Hide an item wherever it is shown, or show it again; its place stays empty, so that nothing moves. */
function setHidden(id, isHidden) {
  hidden[isHidden ? "add" : "delete"](id);
  const names = [...hidden].flatMap((each) => ["item", "caption"].map((kind) => `[data-${kind}="${CSS.escape(each)}"]`));
  style.replaceSync(names.length ? `li:has(> :is(${names})) { visibility: hidden; }` : "");
}

/** Remove an item later, with a button in ``place`` that undoes it.
 *
 * At the end, ``done`` is called with whether it was removed, and whether the button had the focus. */
export function removeLater(id, label, done, place = by("undo")) {
  if (pending.has(id)) return;
  const row = h("p", { class: "undo" });
  const end = (isGone) => {
    const hadFocus = row.contains(document.activeElement);
    row.remove();
    if (!isGone) setHidden(id, false);
    done(isGone, hadFocus);
  };
  const undo = button(t("undo"), () => {
    clearTimeout(timer);
    pending.delete(id);
    by("announcement").textContent = t("notRemoved", { label: isolated(label) });
    end(false);
  });
  const send = async () => {
    clearTimeout(timer);
    pending.delete(id);
    try {
      await api.remove(id);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (problem.kind !== "unknown-item") {
        show(row, h("span", { role: "alert" }, problem.message), button(t("tryAgain"), send), undo);
        return;
      }
    }
    end(true);
  };
  const timer = setTimeout(send, 1000 * SECONDS);
  pending.set(id, send);
  setHidden(id, true);
  show(row, h("span", {}, pieces("removed", { label: h("bdi", {}, label) })), undo);
  place.append(row);
  by("announcement").textContent = t("canUndo", { label: isolated(label), n: SECONDS });
  undo.focus();
}

addEventListener("pagehide", () => pending.forEach((send) => send()));
