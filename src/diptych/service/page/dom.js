// Elements without markup strings, so that texts of users and models are never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);

export const svg = (name, attributes, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

export const by = (id) => document.getElementById(id);

export const show = (element, ...children) => element.replaceChildren(...children.flat().filter(Boolean));

/** Isolate a text of unknown direction within a string, so that it does not reorder the rest. */
export const isolated = (text) => `\u2068${text}\u2069`;

export const number = (value) => new Intl.NumberFormat("en").format(value);

/** A probability for people; it is never quite certain. */
export const percent = (share) =>
  (share < 0.005 ? "< 1\u00a0%" : share >= 0.995 ? "> 99\u00a0%" : `${Math.round(100 * share)}\u00a0%`);
