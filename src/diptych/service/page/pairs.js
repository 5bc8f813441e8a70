// Stored captions with their images, those first that most likely belong to another image.

import { api, Problem } from "./api.js";
import { by, h, isolated, number, percent, show } from "./dom.js";
import { button, errorNotice, notice } from "./notices.js";
import { removeLater } from "./remove.js";
import { captionOf, frame } from "./results.js";
import { t } from "./strings.js";
import { NO_FILTER, toCaption, write } from "./url.js";
import { capitalise, counted, many, one } from "./words.js";

const PAGE = 20;
const WAIT = 3000; // until an unfinished audit is asked for again
const settled = new Set(); // captions that were kept or corrected in this visit

/** Show the pairs in a place, page by page; ``failed`` is called with what only the page can mend. */
export async function showPairs(place, state, model, signal, failed) {
  const [about, list, foot] = [h("p", { class: "note", role: "status" }), h("ol", { class: "pairs" }), h("div")];
  const title = h("h1", { class: "model-name", tabindex: "-1" }, t("pairsTitle", { Many: capitalise(many("caption")) }));
  show(place, title, about, list, foot);
  const seen = new Set(settled);
  let offset = 0; // 0 again after a change, as all pairs are audited anew then, and may be in another order

  /** Take a pair out of the list, with the focus on the next one. */
  const drop = (row, hadFocus) => {
    const next = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    if (hadFocus) (next?.querySelector("button") ?? title).focus();
  };

  async function load() {
    if (signal.aborted) return;
    const [limit, rows] = [Math.min(PAGE, model.limits.k), []];
    let page;
    try {
      do {
        page = await api.audit({ offset, limit }, signal);
        offset += limit;
        for (const pair of page.pairs) {
          if (!seen.has(pair.caption.id)) rows.push(makeRow(pair));
          seen.add(pair.caption.id);
        }
      } while (page.more && rows.length < limit);
    } catch (problem) {
      if (signal.aborted) return;
      if (!(problem instanceof Problem) || problem.status === 401) failed(problem);
      else if (problem.status === 503) {
        about.textContent = t("pairsChecking", { many: many("caption") });
        setTimeout(load, WAIT);
      } else {
        about.textContent = "";
        show(foot, problem.status === 422 ? notice(t("pairsUnchecked", { many: many("caption") }), capitalise(problem.message))
          : errorNotice(problem, load, { ...state, ...NO_FILTER }));
      }
      return;
    }
    const hadFocus = foot.contains(document.activeElement);
    list.append(...rows);
    about.textContent = t("pairsCount", { n: number(page.flagged), all: counted(page.total, "caption"), noun: one("image") })
      + (page.outdated ? t("pairsOutdated") : "");
    show(foot, h("p", { class: "more" }, page.more ? button(t("showMore"), load) : h("span", { class: "note" }, t("noMore", { many: many("caption") }))));
    if (hadFocus) rows[0]?.querySelector("a").focus();
  }

  function makeRow({ image, caption, wrong, flagged }) {
    let label = caption.text ?? caption.id;
    const text = h("a", { href: write(toCaption({ ...state, ...NO_FILTER }, caption.id)), "data-caption": caption.id, class: "pair-text", dir: "auto" }, label);
    const doubt = h("p", { class: flagged ? "doubt flagged" : "doubt" }, t("likelyWrong", { share: percent(wrong) }));
    const choices = h("p", { class: "choices" });
    const body = h("div", {}, text, doubt, choices);
    const row = h("li", {}, h("a", {
      class: "tile", href: write({ ...state, item: image.id }), "data-item": image.id, "aria-label": t("open", { label: isolated(captionOf(image) || image.id) }),
    }, frame(image)), body);
    const choice = (name, act) => h("button", { type: "button", class: "switch", "aria-label": t("labelled", { name, label: isolated(label) }), onclick: act }, name);
    const keep = () => {
      settled.add(caption.id);
      by("announcement").textContent = t("kept", { label: isolated(label) });
      drop(row, true);
    };
    const remove = () => {
      const setHidden = (isHidden) => { for (const part of [text, doubt, choices]) part.hidden = isHidden; };
      setHidden(true);
      removeLater(caption.id, label, (isGone, hadFocus) => {
        if (isGone) offset = 0;
        setHidden(isGone);
        if (isGone) drop(row, hadFocus);
        else if (hadFocus) choices.querySelector("button").focus();
      }, body);
    };
    const correct = () => {
      const field = h("textarea", { rows: 1, dir: "auto", required: true, "aria-label": capitalise(one("caption")) }, label);
      const error = h("p", { class: "wrong", role: "alert" });
      const close = () => {
        form.replaceWith(text, doubt, choices);
        choices.querySelector("button").focus();
      };
      const form = h("form", { class: "edit" }, field, error,
        h("p", { class: "choices" }, h("button", { type: "submit", class: "button" }, t("save")), h("button", { type: "button", class: "switch", onclick: close }, t("cancel"))));
      form.addEventListener("submit", async (event) => {
        event.preventDefault();
        field.value = field.value.trim();
        if (form.getAttribute("aria-busy") || !form.reportValidity()) return;
        form.setAttribute("aria-busy", "true");
        try {
          label = (await api.update(caption.id, { text: field.value })).text;
        } catch (problem) {
          if (!(problem instanceof Problem)) throw problem;
          error.textContent = capitalise(problem.message);
          return;
        } finally {
          form.removeAttribute("aria-busy");
        }
        settled.add(caption.id);
        offset = 0;
        text.textContent = label;
        doubt.textContent = t("corrected");
        doubt.className = "doubt";
        by("announcement").textContent = t("labelled", { name: t("corrected"), label: isolated(label) });
        showChoices();
        close();
      });
      text.remove();
      doubt.remove();
      choices.replaceWith(form);
      field.focus();
    };
    const showChoices = () => show(choices, choice(t("keep"), keep), model.can.text === null && choice(t("correct"), correct), choice(t("remove"), remove));
    if (model.writable) showChoices();
    return row;
  }

  await load();
}
