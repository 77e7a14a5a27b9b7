"use strict";
// What the pages of this package share: the JSON in #data, elements, colours, SVG curves with values on hover, the theme.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function htmlElement(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
function svgElement(name, attributes = {}, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
// How line i is drawn: as the data say, or with a colour of its own.
const styleOf = (i) => (data.styles && data.styles[i]) || { colour: i % 8, dash: Math.floor(i / 8) % 4 };
const colour = (i) => `var(--c${styleOf(i).colour})`;
const lineStyle = (i) => ["solid", "dashed", "dotted", "double"][styleOf(i).dash];
const swatch = (i) => htmlElement("span", { class: "swatch", style: `border-top-color:${colour(i)};border-top-style:${lineStyle(i)}` });
const dashes = (i) => ["", "7 4", "2 3", "9 3 2 3"][styleOf(i).dash];
function format(value, digits = 1) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size < 0.01 || size >= 1e6 ? value.toExponential(2) : value.toFixed(size < 1 ? 3 : digits);
}

const CIVIDIS = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 143, 120], [200, 183, 101], [254, 232, 56]];
function cividis(fraction) {
  const position = Math.min(Math.max(fraction, 0), 1) * (CIVIDIS.length - 1);
  const low = Math.min(Math.floor(position), CIVIDIS.length - 2);
  const rgb = CIVIDIS[low].map((part, i) => Math.round(part + (position - low) * (CIVIDIS[low + 1][i] - part)));
  return { background: `rgb(${rgb})`, text: fraction > 0.55 ? "#000" : "#fff" };
}

// ---- charts -------------------------------------------------------------------------------------------------------
const LEFT = 62, RIGHT = 24, TOP = 10, BOTTOM = 40;

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) found.push(Number(v.toPrecision(12)));
  return found;
}
function decades(low, high) {
  const found = [];
  const parts = high - low > 2 ? [1] : [1, 2, 5];
  const step = Math.ceil((high - low) / 8) || 1;
  for (let e = Math.floor(low); e <= high; e += step) found.push(...parts.map((part) => part * 10 ** e));
  return found.filter((v) => Math.log10(v) >= low && Math.log10(v) <= high);
}
const tickText = (v) => (Math.abs(v) >= 10000 || (v !== 0 && Math.abs(v) < 0.001) ? v.toExponential(0) : String(v));

// Draws lines {run, x, y, low, high, thin} into a figure; `labels[run]` names a line in the tooltip. A logarithmic axis skips values that are not positive.
function chart(figure, lines, { xlabel, ylabel, labels, log = false }) {
  figure.replaceChildren();
  const W = Math.max(300, figure.clientWidth), H = Math.min(420, Math.max(260, W / 2)); // fixed text size on narrow screens
  const drawable = (v) => v !== null && v !== undefined && (!log || v > 0);
  const scale = (v) => (log ? Math.log10(v) : v);
  const values = lines.flatMap((line) => [line.y, line.low, line.high].flatMap((row) => (row || []).filter(drawable).map(scale)));
  if (!values.length) { figure.append(htmlElement("p", { class: "note" }, log && lines.length ? "zero in every iteration" : "nothing to draw")); return; }
  let low = Math.min(...values), high = Math.max(...values);
  const right = Math.max(...lines.flatMap((line) => line.x)), left = Math.min(0, ...lines.flatMap((line) => line.x));
  const margin = (high - low || Math.abs(high) || 1) * 0.05;
  [low, high] = [low - margin, high + margin];
  const toX = (v) => LEFT + ((v - left) / (right - left || 1)) * (W - LEFT - RIGHT);
  const toY = (v) => H - BOTTOM - ((scale(v) - low) / (high - low)) * (H - TOP - BOTTOM);
  const svg = svgElement("svg", { viewBox: `0 0 ${W} ${H}`, tabindex: 0, role: "img", "aria-label": `${ylabel} against ${xlabel}` });
  const levels = log ? decades(low, high) : ticks(low, high, 6);
  for (const v of levels) {
    svg.append(svgElement("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: toY(v), y2: toY(v) }),
      svgElement("text", { x: LEFT - 8, y: toY(v) + 4, "text-anchor": "end" }, log ? v.toExponential(0) : tickText(v)));
  }
  for (const v of ticks(left, right, W < 500 ? 4 : 7)) svg.append(svgElement("text", { x: toX(v), y: H - BOTTOM + 18, "text-anchor": "middle" }, tickText(v)));
  svg.append(svgElement("text", { x: (LEFT + W - RIGHT) / 2, y: H - 4, "text-anchor": "middle" }, xlabel),
    svgElement("text", { x: -(TOP + H - BOTTOM) / 2, y: 13, transform: "rotate(-90)", "text-anchor": "middle" }, ylabel));
  const path = (x, y) => x.map((v, i) => (drawable(y[i]) ? `${i && drawable(y[i - 1]) ? "L" : "M"}${toX(v).toFixed(1)} ${toY(y[i]).toFixed(1)}` : "")).join("");
  for (const line of lines) {
    if (line.low) {
      const kept = line.x.map((_, i) => i).filter((i) => drawable(line.low[i]) && drawable(line.high[i]));
      const edge = [...kept.map((i) => [i, line.high]), ...kept.reverse().map((i) => [i, line.low])];
      const d = edge.map(([i, row]) => `${toX(line.x[i]).toFixed(1)} ${toY(row[i]).toFixed(1)}`).join("L");
      if (d) svg.append(svgElement("path", { d: `M${d}Z`, fill: colour(line.run), opacity: 0.15, class: "band", "data-run": line.run }));
    }
    svg.append(svgElement("path", { d: path(line.x, line.y), fill: "none", stroke: colour(line.run), class: "line", "data-run": line.run,
      "stroke-width": line.thin ? 1 : 2, "stroke-dasharray": dashes(line.run), opacity: line.thin ? 0.6 : 1 }));
  }
  const crosshair = svgElement("line", { class: "crosshair", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
  const tooltip = htmlElement("div", { class: "tooltip", hidden: "" });
  svg.append(crosshair);
  figure.append(svg, tooltip);
  hover(svg, crosshair, tooltip, lines, { W, toX, left, right, xlabel, labels });
}

function hover(svg, crosshair, tooltip, lines, { W, toX, left, right, xlabel, labels }) {
  const stops = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  let current = -1;
  function moveTo(index) {
    current = Math.max(0, Math.min(stops.length - 1, index));
    const x = stops[current], xPixel = toX(x);
    crosshair.setAttribute("x1", xPixel); crosshair.setAttribute("x2", xPixel); crosshair.setAttribute("visibility", "visible");
    const rows = new Map();
    for (const line of lines) {
      const i = line.x.indexOf(x);
      if (i >= 0) rows.set(line.run, [...(rows.get(line.run) || []), [line.y[i], line.low && line.low[i], line.high && line.high[i]]]);
    }
    tooltip.replaceChildren(htmlElement("div", { class: "tooltip-x", "data-x": x }, `${xlabel} ${x}`), ...[...rows].map(([run, found]) => {
      const [value, low, high] = found[0];
      const text = found.length > 1 ? found.map(([v]) => format(v)).join(" ") : low === undefined || low === null ? format(value)
        : `${format(value)} [${format(low)}, ${format(high)}]`;
      return htmlElement("div", { "data-run": run, "data-value": value === null ? "" : value },
        swatch(run), labels[run], htmlElement("b", {}, text));
    }));
    tooltip.hidden = false;
    const share = xPixel / W;
    tooltip.style.left = share < 0.5 ? `${share * 100 + 2}%` : "auto";
    tooltip.style.right = share < 0.5 ? "auto" : `${(1 - share) * 100 + 2}%`;
  }
  function hide() { tooltip.hidden = true; crosshair.setAttribute("visibility", "hidden"); }
  function move(event) {
    const box = svg.getBoundingClientRect();
    const x = left + (((event.clientX - box.left) / box.width) * W - LEFT) / (W - LEFT - RIGHT) * (right - left);
    let near = 0;
    stops.forEach((value, i) => { if (Math.abs(value - x) < Math.abs(stops[near] - x)) near = i; });
    moveTo(near);
  }
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); }); // keep the values after a touch
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by) { moveTo(current + by); event.preventDefault(); }
  });
}

function theme() {
  const root = document.documentElement;
  byId("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
}

// A table that is wider than the screen says so.
function scrollCues() {
  for (const box of document.querySelectorAll(".scroll")) box.classList.toggle("overflows", box.scrollWidth > box.clientWidth + 1);
}

function redrawOnResize(draw) {
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // only the height changed: a phone's address bar came or went
    width = innerWidth;
    draw();
  });
}
