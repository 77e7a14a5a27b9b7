
"use strict";
// Draws the page from the JSON in #data: tables, curves as SVG with toggles and hover values, shares, animations.
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const hidden = new Set(); // indices of runs switched off

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function shape(name, attributes = {}, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
// What tells a run from the others: its label without the parts that all share.
const brief = data.runs.map((run) => {
  const own = run.label.split(", ").filter((part) => !data.runs.every((other) => other.label.split(", ").includes(part)));
  return own.join(", ") || run.label;
});
const colour = (i) => `var(--c${i % 8})`;
const stroke = (i) => ["solid", "dashed", "dotted", "double"][Math.floor(i / 8) % 4];
const swatch = (i) => element("span", { class: "swatch", style: `border-top-color:${colour(i)};border-top-style:${stroke(i)}` });
const dash = (i) => ["", "7 4", "2 3", "9 3 2 3"][Math.floor(i / 8) % 4];
function show(value, digits = 1) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size < 0.01 || size >= 1e6 ? value.toExponential(2) : value.toFixed(size < 1 ? 3 : digits);
}

// ---- tables -------------------------------------------------------------------------------------------------------
function resultsTable() {
  const head = ["run", "final return", "±", "worst seed", ...data.levels.map((l) => `to ${l}`), "trajectories",
    "diameter", "MB sent"];
  const rows = data.runs.map((run, i) => {
    const name = element("td", {}, swatch(i), " " + run.label);
    const cell = (value, text) => element("td", { "data-value": value === null ? "" : value }, text);
    return element("tr", { "data-run": i }, name,
      cell(run.final.mean, show(run.final.mean)), cell(run.final.std, show(run.final.std)),
      cell(run.final.worst, show(run.final.worst)),
      ...run.reached.map((value) => cell(value, value === null ? "never" : value.toFixed(0))),
      cell(run.trajectories, run.trajectories), cell(run.diameter, show(run.diameter)),
      cell(run.megabytes, show(run.megabytes)));
  });
  at("results").append(element("thead", {}, element("tr", {}, ...head.map((text) => element("th", {}, text)))),
    element("tbody", {}, ...rows));
}

const cividis = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 143, 120], [200, 183, 101], [254, 232, 56]];
function shade(share) {
  const place = Math.min(Math.max(share, 0), 1) * (cividis.length - 1), low = Math.min(Math.floor(place), cividis.length - 2);
  const mix = cividis[low].map((part, i) => Math.round(part + (place - low) * (cividis[low + 1][i] - part)));
  return { background: `rgb(${mix})`, ink: share > 0.55 ? "#000" : "#fff" };
}

function heatmap() {
  const { rules, attacks, cells, iqm } = data.table;
  const means = cells.flat().filter((cell) => cell !== null && cell.mean !== null).map((cell) => cell.mean);
  const low = Math.min(...means), range = Math.max(...means) - low || 1;
  const rows = rules.map((rule, r) => element("tr", {}, element("td", {}, rule),
    ...cells[r].map((cell) => {
      if (cell === null) return element("td", { class: "value" }, "");
      const { background, ink } = cell.mean === null ? { background: "none", ink: "inherit" } : shade((cell.mean - low) / range);
      return element("td", { class: "value", "data-value": cell.mean, style: `background:${background};color:${ink}`,
        title: `${cell.seeds.length} seeds: ${cell.seeds.map((s) => show(s)).join(", ")}` }, show(cell.mean));
    }),
    element("td", { "data-value": iqm[r].value }, `${show(iqm[r].value)} [${show(iqm[r].low)}, ${show(iqm[r].high)}]`)));
  at("heatmap").append(
    element("thead", {}, element("tr", {}, ...["rule", ...attacks, "IQM"].map((text) => element("th", {}, text)))),
    element("tbody", {}, ...rows));
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
const short = (v) => (Math.abs(v) >= 10000 || (v !== 0 && Math.abs(v) < 0.001) ? v.toExponential(0) : String(v));

// lines: {run, x, y, low, high, thin}; values at or below zero are not drawn on a logarithmic axis.
function chart(place, lines, { xlabel, ylabel, log = false }) {
  place.replaceChildren();
  const W = Math.max(300, place.clientWidth), H = Math.min(420, Math.max(260, W / 2)); // text keeps its size on a phone
  const fine = (v) => v !== null && v !== undefined && (!log || v > 0);
  const put = (v) => (log ? Math.log10(v) : v);
  const values = lines.flatMap((line) => [line.y, line.low, line.high].flatMap((row) => (row || []).filter(fine).map(put)));
  if (!values.length) { place.append(element("p", { class: "note" }, log && lines.length ? "zero throughout" : "nothing to draw")); return; }
  let low = Math.min(...values), high = Math.max(...values);
  const right = Math.max(...lines.flatMap((line) => line.x)), left = Math.min(0, ...lines.flatMap((line) => line.x));
  const room = (high - low || Math.abs(high) || 1) * 0.05;
  [low, high] = [low - room, high + room];
  const sx = (v) => LEFT + ((v - left) / (right - left || 1)) * (W - LEFT - RIGHT);
  const sy = (v) => H - BOTTOM - ((put(v) - low) / (high - low)) * (H - TOP - BOTTOM);
  const svg = shape("svg", { viewBox: `0 0 ${W} ${H}`, tabindex: 0, role: "img", "aria-label": `${ylabel} against ${xlabel}` });
  const levels = log ? decades(low, high) : ticks(low, high, 6);
  for (const v of levels) {
    svg.append(shape("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: sy(v), y2: sy(v) }),
      shape("text", { x: LEFT - 8, y: sy(v) + 4, "text-anchor": "end" }, log ? v.toExponential(0) : short(v)));
  }
  for (const v of ticks(left, right, W < 500 ? 4 : 7)) svg.append(shape("text", { x: sx(v), y: H - BOTTOM + 18, "text-anchor": "middle" }, short(v)));
  svg.append(shape("text", { x: (LEFT + W - RIGHT) / 2, y: H - 4, "text-anchor": "middle" }, xlabel),
    shape("text", { x: -(TOP + H - BOTTOM) / 2, y: 13, transform: "rotate(-90)", "text-anchor": "middle" }, ylabel));
  const path = (x, y) => x.map((v, i) => (fine(y[i]) ? `${i && fine(y[i - 1]) ? "L" : "M"}${sx(v).toFixed(1)} ${sy(y[i]).toFixed(1)}` : "")).join("");
  for (const line of lines) {
    if (line.low) {
      const kept = line.x.map((_, i) => i).filter((i) => fine(line.low[i]) && fine(line.high[i]));
      const edge = [...kept.map((i) => [i, line.high]), ...kept.reverse().map((i) => [i, line.low])];
      const d = edge.map(([i, row]) => `${sx(line.x[i]).toFixed(1)} ${sy(row[i]).toFixed(1)}`).join("L");
      if (d) svg.append(shape("path", { d: `M${d}Z`, fill: colour(line.run), opacity: 0.15, class: "band", "data-run": line.run }));
    }
    svg.append(shape("path", { d: path(line.x, line.y), fill: "none", stroke: colour(line.run), class: "line", "data-run": line.run,
      "stroke-width": line.thin ? 1 : 2, "stroke-dasharray": dash(line.run), opacity: line.thin ? 0.6 : 1 }));
  }
  const hair = shape("line", { class: "hair", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
  const tip = element("div", { class: "tip", hidden: "" });
  svg.append(hair);
  place.append(svg, tip);
  hover(place, svg, hair, tip, lines, { W, sx, left, right, xlabel });
}

function hover(place, svg, hair, tip, lines, { W, sx, left, right, xlabel }) {
  const stops = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  let current = -1;
  function stop(index) {
    current = Math.max(0, Math.min(stops.length - 1, index));
    const x = stops[current], place_x = sx(x);
    hair.setAttribute("x1", place_x); hair.setAttribute("x2", place_x); hair.setAttribute("visibility", "visible");
    const rows = new Map();
    for (const line of lines) {
      const i = line.x.indexOf(x);
      if (i >= 0) rows.set(line.run, [...(rows.get(line.run) || []), [line.y[i], line.low && line.low[i], line.high && line.high[i]]]);
    }
    tip.replaceChildren(element("div", { class: "where", "data-x": x }, `${xlabel} ${x}`), ...[...rows].map(([run, found]) => {
      const [value, low, high] = found[0];
      const text = found.length > 1 ? found.map(([v]) => show(v)).join(" ") : low === undefined || low === null ? show(value)
        : `${show(value)} [${show(low)}, ${show(high)}]`;
      return element("div", { "data-run": run, "data-value": value === null ? "" : value },
        swatch(run), brief[run], element("b", {}, text));
    }));
    tip.hidden = false;
    const share = place_x / W;
    tip.style.left = share < 0.5 ? `${share * 100 + 2}%` : "auto";
    tip.style.right = share < 0.5 ? "auto" : `${(1 - share) * 100 + 2}%`;
  }
  function leave() { tip.hidden = true; hair.setAttribute("visibility", "hidden"); }
  function move(event) {
    const box = svg.getBoundingClientRect();
    const x = left + (((event.clientX - box.left) / box.width) * W - LEFT) / (W - LEFT - RIGHT) * (right - left);
    let near = 0;
    stops.forEach((value, i) => { if (Math.abs(value - x) < Math.abs(stops[near] - x)) near = i; });
    stop(near);
  }
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") leave(); }); // a lifted finger stays
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by) { stop(current + by); event.preventDefault(); }
  });
}

const name = (metric) => (metric === "return" ? "return of honest agents" : metric.replaceAll("_", " "));
function drawCurves() {
  const metric = at("metric").value, statistic = at("statistic").value;
  const lines = data.runs.flatMap((run, i) => {
    const curve = run.curves[metric];
    if (hidden.has(i) || !curve) return [];
    if (statistic === "seeds" && curve.seeds.length) return curve.seeds.map((y) => ({ run: i, x: curve.x, y, thin: true }));
    const [y, low, high] = curve[statistic === "iqm" ? "iqm" : "mean"];
    return [{ run: i, x: curve.x, y, ...(run.seeds.length > 1 ? { low, high } : {}) }];
  });
  chart(at("curves"), lines, { xlabel: "trajectories per agent", ylabel: name(metric) });
}
function drawDiameters() {
  const lines = data.runs.flatMap((run, i) => {
    const [y, low, high] = run.diameters.median;
    return hidden.has(i) ? [] : [{ run: i, x: run.diameters.x, y, low, high }];
  });
  chart(at("diameters"), lines, { xlabel: "iteration", ylabel: "distance", log: true });
}

function shown() {
  for (const button of at("legend").children) button.setAttribute("aria-pressed", String(!hidden.has(Number(button.dataset.run))));
  at("all").textContent = hidden.size ? "show all" : "hide all";
  drawCurves();
  drawDiameters();
}

function controls() {
  const metrics = [...new Set(data.runs.flatMap((run) => Object.keys(run.curves)))];
  metrics.sort((a, b) => (b === "return") - (a === "return"));
  at("metric").append(...metrics.map((metric) => element("option", { value: metric }, name(metric))));
  at("metric").addEventListener("change", () => {
    const option = at("statistic").querySelector('[value="seeds"]');
    option.disabled = at("metric").value !== "return"; // single seeds are kept for the return only
    if (option.disabled && option.selected) at("statistic").value = "mean";
    drawCurves();
  });
  at("statistic").addEventListener("change", drawCurves);
  data.runs.forEach((run, i) => {
    const button = element("button", { type: "button", "aria-pressed": "true", "data-run": i },
      swatch(i), brief[i]);
    button.addEventListener("click", () => {
      if (!hidden.delete(i)) hidden.add(i);
      shown();
    });
    at("legend").append(button);
  });
  at("all").addEventListener("click", () => {
    const none = hidden.size > 0;
    hidden.clear();
    if (!none) data.runs.forEach((_, i) => hidden.add(i));
    shown();
  });
}

// ---- shares, animations, how to repeat it -------------------------------------------------------------------------
function trust() {
  const tiles = data.runs.flatMap((run, i) => {
    if (!run.trust) return [];
    const { shares, trajectories, byzantine } = run.trust, K = shares.length, G = trajectories.length;
    const top = Math.max(2 / K, ...shares.flat()), cell = 10, indent = 3;
    const svg = shape("svg", { viewBox: `0 0 ${G + indent} ${K * cell}`, preserveAspectRatio: "none", "shape-rendering": "crispEdges", width: "100%",
      height: Math.max(60, K * 12), role: "img", "aria-label": `share of each of ${K} senders` });
    shares.forEach((row, k) => row.forEach((share, g) => {
      const box = shape("rect", { x: g + indent, y: k * cell, width: 1.02, height: cell, fill: shade(share / top).background });
      box.append(shape("title", {}, `sender ${k}${byzantine[k] ? " (Byzantine)" : ""}, trajectory ${trajectories[g]}: ${show(share)}`));
      svg.append(box);
    }));
    byzantine.forEach((lies, k) => { if (lies) svg.append(shape("rect", { x: 0, y: k * cell + 1, width: 2, height: cell - 2, fill: "var(--c1)" })); });
    const liars = byzantine.flatMap((lies, k) => (lies ? [k] : []));
    const mark = liars.length ? `; orange marks Byzantine senders ${liars.join(", ")}` : "";
    return [element("figure", { "data-run": i }, svg, element("figcaption", {}, `${brief[i]}; brightest: ${show(top)}${mark}`))];
  });
  if (tiles.length) at("trust").append(...tiles); else at("trust-section").hidden = true;
}

function animations() {
  at("animations").append(...data.animations.map((item) => {
    const label = brief[item.run];
    return element("figure", {}, element("img", { src: item.source, alt: `${item.kind}: ${label}` }),
      element("figcaption", {}, `${label}: ${item.caption}`));
  }));
  if (data.left_out) at("left-out").textContent = `${data.left_out} more run(s) are not animated; --animations sets how many are.`;
  if (!data.animations.length) at("animation-section").hidden = true;
}

function repeat() {
  const list = (values, differing = []) => element("dl", {}, ...Object.entries(values).flatMap(([key, value]) => {
    const attributes = differing.includes(key) ? { class: "differs" } : {};
    return [element("dt", attributes, key), element("dd", attributes, value === null ? "none" : String(value))];
  }));
  data.runs.forEach((run, i) => {
    const { versions = {}, ...machine } = run.machine;
    at("repeat").append(element("details", { "data-run": i }, element("summary", {}, run.label),
      element("pre", {}, run.command), element("h3", {}, "Configuration"), list(run.config, data.differing),
      element("h3", {}, "Made with"), list({ ...versions, ...machine })));
  });
}

function theme() {
  const root = document.documentElement;
  at("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
}

const seeds = data.runs.reduce((sum, run) => sum + run.seeds.length, 0);
at("summary").textContent = `${data.environment}: ${data.runs.length} run(s), ${seeds} seed(s).`;
resultsTable();
heatmap();
controls();
drawCurves();
drawDiameters();
trust();
animations();
repeat();
theme();
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return; // a phone's address bar came or went
  width = innerWidth;
  drawCurves();
  drawDiameters();
});
