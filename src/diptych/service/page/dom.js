// Elements without markup strings, so that texts of users and models are never parsed as HTML.

import { locale, t } from "./strings.js";

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);

export const svg = (name, attributes, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

export const by = (id) => document.getElementById(id);

export const show = (element, ...children) => element.replaceChildren(...children.flat().filter(Boolean));

/** Isolate a text of unknown direction within a string, so that it does not reorder the rest. */
export const isolated = (text) => `\u2068${text}\u2069`;

export const number = (value) => new Intl.NumberFormat(locale).format(value);

/** A number with as many digits behind the point. */
export const decimal = (value, digits) =>
  new Intl.NumberFormat(locale, { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: "min2" }).format(value);

const PLAIN = new Intl.NumberFormat(locale, { useGrouping: "min2", maximumFractionDigits: 6 });
const DAY = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeZone: "UTC" });
const TIME = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "short", timeZone: "UTC" });
const ISO = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d))?/;

/** The day of an ISO date for people; null: the value is no date. */
export function day(value) {
  const [, date] = (typeof value === "string" && ISO.exec(value)) || [];
  return Date.parse(date) ? DAY.format(Date.parse(date)) : null;
}

/** A value of metadata for people. A time is shown as it was written, in whichever zone. */
export function plain(value) {
  if (Array.isArray(value)) return value.map(plain).join(", ");
  if (typeof value === "number") return PLAIN.format(value);
  if (typeof value === "boolean") return t(value ? "yes" : "no");
  if (!day(value)) return typeof value === "string" ? value : JSON.stringify(value);
  const [, date, time] = ISO.exec(value);
  return time && Date.parse(`${date}T${time}Z`) ? TIME.format(Date.parse(`${date}T${time}Z`)) : day(value);
}

/** A probability for people; it is never quite certain. */
export const percent = (share) =>
  (share < 0.005 ? "< 1\u00a0%" : share >= 0.995 ? "> 99\u00a0%" : `${Math.round(100 * share)}\u00a0%`);
