// Confirming that a hit is right: the server keeps the pair, and learns from it at its next refit.

import { api } from "./api.js";
import { by, h, isolated, number } from "./dom.js";
import { viewOf } from "./search.js";
import { t } from "./strings.js";

/** What the last refit brought, or what the next one is for. */
export function describeRefit(model) {
  const { refitted } = model.facts;
  if (!refitted) return t("nextRefit");
  return t("lastRefit", { pairs: number(refitted.pairs), n: number(refitted.pairs - refitted.before) });
}

/** Whether hits can be confirmed: images for a text that a person typed, where writing is allowed. */
export const canLearn = (state, model) =>
  model.writable && viewOf(state) === "text" && !state.caption && !state.similar && !state.parts.length && state.q.trim() !== "";

function setLearned(button, id) {
  button.dataset.learned = id ?? "";
  button.title = `${t(id ? "confirmed" : "confirm")} ${button.dataset.about}`;
  button.setAttribute("aria-pressed", String(Boolean(id)));
}

async function toggle(button, text, id, label) {
  if (button.getAttribute("aria-busy")) return;
  const { learned } = button.dataset;
  button.setAttribute("aria-busy", "true");
  try {
    if (learned) await api.remove(learned);
    setLearned(button, learned ? null : (await api.learn(text, id)).learned[0]);
    by("announcement").textContent = t(learned ? "takenBack" : "learned", { label: isolated(label) });
  } catch (problem) {
    button.title = problem.message;
    by("announcement").textContent = problem.message;
  } finally {
    button.removeAttribute("aria-busy");
  }
}

/** A button that confirms a hit for a text, and takes that back; ``about``: what comes of it. */
export function learnButton(hit, text, label, about) {
  const button = h("button", {
    type: "button", class: "learn", "data-about": about, "aria-label": t("rightFor", { text: t("quoted", { text: isolated(text) }), label: isolated(label) }),
    onclick: () => toggle(button, text, hit.id, label),
  }, "✓");
  setLearned(button, null);
  return button;
}
