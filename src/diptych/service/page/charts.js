// Charts of a model: the scores over its regularisation grid, and its canonical spectrum.

import { decimal, h, number, svg } from "./dom.js";
import { t } from "./strings.js";
import { many } from "./words.js";

// Five stops of viridis: its lightness grows evenly, so that it is readable without colour vision.
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

function colour(share) {
  const at = Math.max(0, Math.min(1, share)) * (STOPS.length - 1);
  const [low, part] = [Math.min(Math.floor(at), STOPS.length - 2), at - Math.min(Math.floor(at), STOPS.length - 2)];
  const mixed = STOPS[low].map((value, i) => Math.round(value + part * (STOPS[low + 1][i] - value)));
  return `rgb(${mixed.join(",")})`;
}

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

function short(value, kind) {
  if (kind === "tsvd") return String(Math.round(value));
  if (value === 0 || (Math.abs(value) >= 0.01 && Math.abs(value) < 1000)) return number(Number(value.toPrecision(1)));
  const [digit, power] = value.toExponential(0).split("e");
  return `${digit}·10${[...String(Number(power))].map((sign) => RAISED[sign]).join("")}`;
}

// At most five, evenly spaced, so that no two of them touch.
function ticks(values) {
  const step = Math.ceil(values.length / 5);
  return Array.from({ length: Math.ceil(values.length / step) }, (_, i) => i * step);
}

// The grid starts with the strongest regularisation, the largest γ; the axes of the chart grow.
function ascending(path) {
  const order = (values) => values.map((_, i) => i).sort((a, b) => values[a] - values[b]);
  const [xs, ys] = [order(path.x), order(path.y)];
  const turned = (table) => xs.map((i) => ys.map((j) => table[i][j]));
  return {
    ...path, x: xs.map((i) => path.x[i]), y: ys.map((j) => path.y[j]),
    scores: Object.fromEntries(Object.entries(path.scores).map(([task, table]) => [task, turned(table)])),
    choice: Object.fromEntries(Object.entries(path.choice).map(([task, [i, j]]) => [task, [xs.indexOf(i), ys.indexOf(j)]])),
  };
}

export function heatMap(grid, task, title) {
  const path = ascending(grid);
  const scores = path.scores[task];
  const [nx, ny] = [path.x.length, path.y.length];
  const flat = scores.flat().filter((value) => value !== null);
  const [low, high] = [Math.min(...flat), Math.max(...flat)];
  const [cx, cy] = path.choice[task];
  const symbol = { tsvd: "k", tikhonov: "γ" }[path.kind] ?? t("parameter");
  const [left, top, size] = [70, 8, 300];
  const onX = (value) => t("onView", { symbol: `${symbol} ${value}`.trim(), many: many("image") });
  const onY = (value) => t("onView", { symbol: `${symbol} ${value}`.trim(), many: many("text") });
  const [wide, tall] = [size / nx, size / ny];
  const cells = scores.flatMap((row, i) => row.map((value, j) => svg("rect", {
    x: left + i * wide, y: top + size - (j + 1) * tall, width: wide, height: tall, "shape-rendering": "crispEdges",
    fill: value === null ? "none" : colour(high > low ? (value - low) / (high - low) : 1),
  }, svg("title", {}, t("gridPoint", { x: onX(short(path.x[i], path.kind)), y: onY(short(path.y[j], path.kind)), score: value === null ? t("belowBest") : decimal(value, 1) })))));
  const [mx, my] = [left + (cx + 0.5) * wide, top + size - (cy + 0.5) * tall];
  const labels = [
    ...ticks(path.x).map((i) => svg("text", { x: left + (i + 0.5) * wide, y: top + size + 16, "text-anchor": "middle" }, short(path.x[i], path.kind))),
    ...ticks(path.y).map((j) => svg("text", { x: left - 6, y: top + size - (j + 0.5) * tall + 4, "text-anchor": "end" }, short(path.y[j], path.kind))),
    svg("text", { x: left + size / 2, y: top + size + 34, "text-anchor": "middle", class: "axis" }, onX("")),
    svg("text", { x: 10, y: top + size / 2, "text-anchor": "middle", class: "axis", transform: `rotate(-90 10 ${top + size / 2})` }, onY("")),
  ];
  const best = scores[cx][cy];
  const shown = { metric: path.metric, title, nx, ny, low: decimal(low, 1), high: decimal(high, 1), best: decimal(best, 1) };
  const label = t("gridLabel", { ...shown, x: onX(short(path.x[cx], path.kind)), y: onY(short(path.y[cy], path.kind)) });
  return h("figure", { class: "chart" },
    svg("svg", { viewBox: `0 0 ${left + size + 20} ${top + size + 40}`, role: "img", "aria-label": label },
      ...cells,
      svg("circle", { cx: mx, cy: my, r: 7.5, class: "ring-out" }), svg("circle", { cx: mx, cy: my, r: 7.5, class: "ring-in" }),
      ...labels),
    h("figcaption", {}, h("strong", {}, title), t("gridCaption", shown)));
}

/** How many values lie in each of equal parts of a range. */
export function histogram(counts) {
  const [most, width] = [Math.max(...counts), 100 / counts.length];
  return svg("svg", { viewBox: "0 0 100 24", class: "histogram", "aria-hidden": "true", preserveAspectRatio: "none" },
    counts.map((count, i) => svg("rect", { x: i * width, y: 24 * (1 - count / most), width: 0.85 * width, height: (24 * count) / most })));
}

export function legend() {
  const parts = 40;
  return svg("svg", { viewBox: "0 0 200 10", class: "legend", "aria-hidden": "true", preserveAspectRatio: "none" },
    Array.from({ length: parts }, (_, i) => svg("rect", { x: i * (200 / parts), y: 0, width: 200 / parts, height: 10, "shape-rendering": "crispEdges", fill: colour(i / (parts - 1)) })));
}

export function spectrum(curves, titles) {
  const tasks = Object.entries(curves).filter(([, curve]) => curve.number.length > 0);
  const [left, top, width, height] = [44, 10, 620, 220];
  const last = Math.max(...tasks.map(([, curve]) => curve.number.at(-1)), 2);
  const x = (n) => left + ((n - 1) / (last - 1)) * width;
  const y = (value) => top + (1 - Math.max(0, Math.min(1, value))) * height;
  const lines = tasks.map(([task, curve]) => svg("polyline", {
    class: `curve ${task}`, points: curve.number.map((n, i) => `${x(n).toFixed(1)},${y(curve.correlation[i] ?? 0).toFixed(1)}`).join(" "),
  }));
  const marks = [0, 0.25, 0.5, 0.75, 1].flatMap((value) => [
    svg("line", { x1: left, x2: left + width, y1: y(value), y2: y(value), class: "gridline" }),
    svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, number(value)),
  ]);
  const rough = last / 5;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= rough));
  const numbers = [1, ...Array.from({ length: Math.floor(last / step) }, (_, i) => (i + 1) * step)]
    .filter((n, i) => i === 0 || n > 1)
    .map((n) => svg("text", { x: x(n), y: top + height + 18, "text-anchor": "middle" }, String(n)));
  const label = tasks.map(([task, curve]) => t("curveLabel", { task, n: curve.number.at(-1), first: decimal(curve.correlation[0] ?? 0, 2), last: decimal(curve.correlation.at(-1) ?? 0, 2) })).join("; ");
  return h("figure", { class: "chart wide" },
    svg("svg", { viewBox: `0 0 ${left + width + 12} ${top + height + 40}`, role: "img", "aria-label": t("spectrumLabel", { curves: label }) },
      ...marks, ...lines, ...numbers,
      svg("text", { x: left + width / 2, y: top + height + 36, "text-anchor": "middle", class: "axis" }, t("component"))),
    h("figcaption", {}, tasks.map(([task]) => h("span", { class: `key ${task}` }, titles[task] ?? task))));
}
