// Requests to the server; problem details become errors that can be shown.

import { t } from "./strings.js";

export class Problem extends Error {
  constructor(status, kind, detail) {
    super(detail);
    this.status = status;
    this.kind = kind;
  }
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "unreachable", t("unreachable"));
  }
  if (response.status === 204) return null;
  const content = await response.json().catch(() => null);
  if (response.ok && content !== null) return content;
  const kind = String(content?.type ?? "").split(":").pop();
  throw new Problem(response.status, kind, content?.detail ?? t("answeredWith", { status: response.status }));
}

const send = (method, path, body, signal) =>
  call(path, {
    method,
    signal,
    body: body instanceof FormData ? body : JSON.stringify(body),
    headers: body instanceof FormData ? {} : { "Content-Type": "application/json" },
  });

const post = (...request) => send("POST", ...request);

const place = (id) => `v1/items/${encodeURIComponent(id)}`;

export const api = {
  model: () => call("v1/model"),
  item: (id, signal) => call(place(id), { signal }),
  list: (parameters, signal) => call(`v1/items?${new URLSearchParams(parameters)}`, { signal }),
  search: (body, signal) => post("v1/search", body, signal),
  similar: (body, signal) => post("v1/similar", body, signal),
  annotate: (body, signal) => post("v1/annotate", body, signal),
  learn: (text, id) => post("v1/learn", { text, right: id }),
  audit: (parameters, signal) => call(`v1/audit?${new URLSearchParams(parameters)}`, { signal }),
  add: (body) => post("v1/items", body),
  update: (id, body) => send("PATCH", place(id), body),
  remove: (id) => call(place(id), { method: "DELETE", keepalive: true }),
  image: (id) => `${place(id)}/image`,
  thumbnail: (id) => `${place(id)}/thumbnail`,
  file: (id) => `${place(id)}/file`,
  session: (token) => post("v1/session", { token }),
};

export function upload(file, body) {
  const form = new FormData();
  form.append("image", file);
  for (const [name, value] of Object.entries(body)) {
    if (value !== null && value !== undefined) {
      form.append(name, typeof value === "object" ? JSON.stringify(value) : value);
    }
  }
  return form;
}
