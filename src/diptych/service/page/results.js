// Results: items of the first view as a grid, each a link that opens it; captions as a list of links that search images.

import { api } from "./api.js";
import { toCaption, toSimilar, write } from "./url.js";
import { decimal, h, isolated, percent } from "./dom.js";
import { learnButton } from "./learn.js";
import { t } from "./strings.js";

const isKnown = (hit) => typeof hit.probability === "number";

/** Lengths of the bars: probabilities, or scores relative to the best, as these are comparable within one list only. */
function shares(hits) {
  if (hits.every(isKnown)) return hits.map((hit) => hit.probability);
  const scores = hits.map((hit) => hit.score ?? 0);
  const [least, most] = [Math.min(...scores), Math.max(...scores)];
  if (most > 0) return scores.map((score) => score / most);
  return scores.map((score) => (most > least ? 0.15 + (0.85 * (score - least)) / (most - least) : 1));
}

function score(hit, share) {
  const fill = h("i");
  fill.style.setProperty("--share", String(Math.max(0, Math.min(1, share))));
  const value = hit.score === null ? "–" : decimal(hit.score, 3);
  return h("span", { class: "score", title: isKnown(hit) ? t("score", { value }) : null },
    h("span", { class: "bar", "aria-hidden": "true" }, fill),
    h("span", { class: "num" }, h("span", { class: "visually-hidden" }, `${t(isKnown(hit) ? "probability" : "scoreOf")} `),
      isKnown(hit) ? percent(hit.probability) : value));
}

/** Search for more like a hit, or with what it ``learns``, confirm it; where it ``composes``, add or subtract it. */
export function actions(hit, state, label, { learns = false, composes = true } = {}) {
  const part = (sign, shown, name) => h("button", {
    type: "button", "data-sign": sign, "data-id": hit.id, title: name, "aria-label": t("labelled", { name, label: isolated(label) }),
  }, shown);
  return h("p", { class: "hit-actions" },
    h("a", { href: write(toSimilar(state, hit)), "data-similar": hit.id, "data-view": hit.view, "aria-label": t("labelled", { name: t("moreLikeThis"), label: isolated(label) }) }, t("moreLikeThis")),
    learns ? learnButton(hit, state.q.trim(), label, learns) : null,
    composes ? [part("plus", "+", t("addToQuery")), part("minus", "−", t("subtractFromQuery"))] : null);
}

const ownMark = (label) =>
  h("span", { class: "own-mark" }, h("span", { class: "dot", "aria-hidden": "true" }), label);

/** What an item of the first view has in place of an image: its text, or the name of its file. */
export const ownText = (item) => item.text || item.file_name;

export const captionOf = (item) => item.captions?.find((each) => each.text)?.text ?? "";

/** An item of the first view as an image, or as text: its own, its caption, or its id. */
export function frame(item, { lazy = true, whole = false } = {}) {
  const inside = h("span", { class: "frame" });
  const fallback = () => {
    inside.classList.add(ownText(item) ? "own-text" : "no-file");
    inside.replaceChildren(h("span", { dir: "auto" }, ownText(item) || captionOf(item) || item.id));
  };
  if (item.media === "image") {
    const src = whole ? api.image(item.id) : api.thumbnail(item.id);
    inside.append(h("img", { src, alt: whole ? captionOf(item) || item.id : "", loading: lazy ? "lazy" : "eager", decoding: "async", onerror: fallback }));
  } else {
    fallback();
  }
  return inside;
}

export const isPlayed = (item) => item.media === "audio" || item.media === "video";

/** A player for an audio or video file; it says so if the browser cannot play it. */
export function player(media, src, label, preload = "none") {
  const played = h(media, { class: "player", controls: true, preload, src, "aria-label": label });
  played.addEventListener("error", () =>
    played.replaceWith(h("p", { class: "note unplayable" }, t("unplayable", { media }))));
  return played;
}

const download = (item) => (item.media === "file" && item.file_url
  ? h("a", { class: "download", href: api.file(item.id), download: item.file_name }, t("downloadFile", { file: item.file_name })) : null);

/** An item of the first view outside of any link: a player, or as ``frame`` shows it. */
export const showItem = (item, options) => (isPlayed(item) ? player(item.media, api.file(item.id), item.file_name, "metadata")
  : [frame(item, options), download(item)]);

/** A link that opens an item, with its ``image`` above its caption. */
export const tile = (item, state, { lazy = false, image = h("span", { class: "tile-image" }, frame(item, { lazy })), beside = [] } = {}) =>
  h("a", { class: "tile", href: write({ ...state, item: item.id }), "data-item": item.id }, image,
    h("span", { class: "tile-caption", dir: "auto" }, captionOf(item) || item.id), beside);

/** Hits as a list; ``from``: leave out those before; ``plain``: without actions; ``learns``: what comes of it
 * if they are confirmed, where they can be. */
export function images(hits, state, own, { from = 0, plain = false, learns = false } = {}) {
  const bars = shares(hits);
  const wide = hits.some(isPlayed);
  return h("ol", { class: wide ? "grid players" : "grid" }, hits.slice(from).map((hit, at) => {
    const place = from + at;
    const caption = captionOf(hit);
    const mine = own.has(hit.id) ? ownMark(t("own")) : null;
    // A player has buttons of its own, which a link must not contain.
    const played = isPlayed(hit);
    const markBelow = ownText(hit) ? mine : null;
    return h("li", { class: mine ? "own" : "" },
      played ? player(hit.media, api.file(hit.id), caption || hit.file_name) : null,
      tile(hit, state, {
        image: [played ? null : h("span", { class: "tile-image" }, frame(hit, { lazy: place > 11 }), markBelow ? null : mine), markBelow],
        beside: score(hit, bars[place]),
      }),
      download(hit),
      plain ? null : actions(hit, state, caption || hit.id, { learns }));
  }));
}

export function captions(hits, state, own, { from = 0, plain = false } = {}) {
  const bars = shares(hits);
  const seen = hits.some((hit) => hit.thumbnail);
  return h("ol", { class: seen ? "lines" : "lines without-images" }, hits.slice(from).map((hit, at) => {
    const mine = own.has(hit.id);
    return h("li", { class: mine ? "own" : "" },
      h("a", { class: "line", href: write(toCaption(state, hit.id)), "data-caption": hit.id },
        hit.thumbnail ? h("img", { src: hit.thumbnail, alt: "", loading: "lazy", width: 56, height: 56 })
          : seen && h("span", { class: "blank", "aria-hidden": "true" }),
        h("span", { class: "line-text" }, h("bdi", {}, hit.text ?? hit.id), mine ? ownMark(t("own")) : null),
        score(hit, bars[from + at])),
      plain ? null : actions(hit, state, hit.text ?? hit.id));
  }));
}

/** The rank of the first of the query's own pairs; null if it is not among the hits. */
export function ownRank(hits, own) {
  const at = hits.findIndex((hit) => own.has(hit.id));
  return at < 0 ? null : at + 1;
}

export function waiting(mode, count = 8) {
  const one = mode === "search"
    ? () => h("li", {}, h("span", { class: "placeholder tile-placeholder" }), h("span", { class: "placeholder text-placeholder" }))
    : () => h("li", {}, h("span", { class: "placeholder line-placeholder" }));
  return h("ol", { class: mode === "search" ? "grid placeholders" : "lines placeholders", "aria-hidden": "true" },
    Array.from({ length: count }, one));
}
