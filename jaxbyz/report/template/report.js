// Draws the report with the functions of charts.js: tables, curves that can be hidden, shares, animations.
const hidden = new Set(); // indices of runs that are not drawn

const shortLabels = data.runs.map((run) => run.label); // they name only what differs
// ---- tables -------------------------------------------------------------------------------------------------------
function resultsTable() {
  const head = ["run", "final return", "interval", "worst seed", "failed seeds", ...data.levels.map((l) => `trajectories to ${l}`), "trajectories",
    "diameter", "MB sent"];
  const rows = data.runs.map((run, i) => {
    const name = htmlElement("td", {}, swatch(i), " " + run.label);
    const cell = (value, text) => htmlElement("td", { "data-value": value === null ? "" : value }, text);
    return htmlElement("tr", { "data-run": i }, name,
      cell(run.final.mean, format(run.final.mean)), cell(run.final.low, run.final.low === null ? "–" : `${format(run.final.low)} to ${format(run.final.high)}`),
      cell(run.final.worst, format(run.final.worst)), cell(run.failed, `${run.failed} of ${run.seeds.length}`),
      ...run.reached_at.map((value) => cell(value, value === null ? "never" : value.toFixed(0))),
      cell(run.trajectories, run.trajectories), cell(run.diameter, format(run.diameter)),
      cell(run.megabytes, format(run.megabytes)));
  });
  byId("results").append(htmlElement("thead", {}, htmlElement("tr", {}, ...head.map((text) => htmlElement("th", {}, text)))),
    htmlElement("tbody", {}, ...rows));
}

function summaryCells(row) {
  const [attack, mean] = row.worst_attack;
  return [[row.iqm.value, row.iqm.text], [mean, `${attack}: ${format(mean)}`], [row.worst_seed, format(row.worst_seed)], [null, row.failed]]
    .map(([value, text]) => htmlElement("td", { "data-value": value === null ? "" : value }, text));
}

function heatmap() {
  const { defences, attacks, cells } = data.table;
  const means = cells.flat().filter((cell) => cell !== null && cell.mean !== null).map((cell) => cell.mean);
  const [low, high] = data.table.range || [Math.min(...means), Math.max(...means)];
  const range = high - low || 1;
  const rows = defences.map((defence, r) => htmlElement("tr", {}, htmlElement("td", {}, defence), ...summaryCells(data.table.rows[r]),
    ...cells[r].map((cell) => {
      if (cell === null) return htmlElement("td", { class: "value" }, "");
      const { background, text } = cell.mean === null ? { background: "none", text: "inherit" } : cividis((cell.mean - low) / range);
      return htmlElement("td", { class: "value", "data-value": cell.mean, style: `background:${background};color:${text}`,
        title: `${cell.seeds.length} seeds: ${cell.seeds.map((s) => format(s)).join(", ")}` }, cell.text);
    })));
  byId("heatmap").append(
    htmlElement("thead", {}, htmlElement("tr", {}, ...["method", "IQM", "worst attack", "worst seed", "failed", ...attacks].map((text) => htmlElement("th", {}, text)))),
    htmlElement("tbody", {}, ...rows));
}

const metricLabel = (metric) => data.metric_labels[metric] || metric;
function drawCurves() {
  const metric = byId("metric").value, statistic = byId("statistic").value;
  const lines = data.runs.flatMap((run, i) => {
    const curve = run.curves[metric];
    if (hidden.has(i) || !curve) return [];
    if (statistic === "seeds" && curve.seeds.length) return curve.seeds.map((y) => ({ run: i, x: curve.x, y, thin: true }));
    const [y, low, high] = curve[statistic === "iqm" ? "iqm" : "mean"];
    return [{ run: i, x: curve.x, y, ...(run.seeds.length > 1 ? { low, high } : {}) }];
  });
  chart(byId("curves"), lines, { xlabel: "trajectories per agent", ylabel: metricLabel(metric), labels: shortLabels });
}
function drawDiameters() {
  const lines = data.runs.flatMap((run, i) => {
    const [y, low, high] = run.diameters.spread;
    return hidden.has(i) ? [] : [{ run: i, x: run.diameters.x, y, low, high }];
  });
  chart(byId("diameters"), lines, { xlabel: "iteration", ylabel: metricLabel("diameter"), labels: shortLabels, log: true });
}

function update() {
  for (const button of byId("legend").children) button.setAttribute("aria-pressed", String(!hidden.has(Number(button.dataset.run))));
  byId("all").textContent = hidden.size ? "show all" : "hide all";
  drawCurves();
  drawDiameters();
}

function controls() {
  const metrics = Object.keys(data.metric_labels).filter((metric) => data.runs.some((run) => run.curves[metric]));
  byId("metric").append(...metrics.map((metric) => htmlElement("option", { value: metric }, metricLabel(metric))));
  byId("metric").addEventListener("change", () => {
    const option = byId("statistic").querySelector('[value="seeds"]');
    option.disabled = byId("metric").value !== "returns"; // the page has single seeds of the return only
    if (option.disabled && option.selected) byId("statistic").value = "mean";
    drawCurves();
  });
  byId("statistic").addEventListener("change", drawCurves);
  data.runs.forEach((run, i) => {
    const button = htmlElement("button", { type: "button", "aria-pressed": "true", "data-run": i },
      swatch(i), shortLabels[i]);
    button.addEventListener("click", () => {
      if (!hidden.delete(i)) hidden.add(i);
      update();
    });
    byId("legend").append(button);
  });
  byId("all").addEventListener("click", () => {
    const someHidden = hidden.size > 0;
    hidden.clear();
    if (!someHidden) data.runs.forEach((_, i) => hidden.add(i));
    update();
  });
}

// ---- shares, animations, commands -------------------------------------------------------------------------
function trust() {
  const tiles = data.runs.flatMap((run, i) => {
    if (!run.trust) return [];
    const { shares, trajectories, byzantine } = run.trust, K = shares.length, G = trajectories.length;
    const cell = 10, indent = 3;
    const svg = svgElement("svg", { viewBox: `0 0 ${G + indent} ${K * cell}`, preserveAspectRatio: "none", "shape-rendering": "crispEdges", width: "100%",
      height: Math.max(60, K * 12), role: "img", "aria-label": `share of each of ${K} senders` });
    shares.forEach((row, k) => row.forEach((share, g) => {
      const box = svgElement("rect", { x: g + indent, y: k * cell, width: 1.02, height: cell, fill: cividis(share / data.brightest).background });
      box.append(svgElement("title", {}, `sender ${k}${byzantine[k] ? " (Byzantine)" : ""}, ${trajectories[g]} trajectories: ${format(share)}`));
      svg.append(box);
    }));
    byzantine.forEach((isByzantine, k) => { if (isByzantine) svg.append(svgElement("rect", { x: 0, y: k * cell + 1, width: 2, height: cell - 2, fill: "var(--c1)" })); });
    const senders = byzantine.flatMap((isByzantine, k) => (isByzantine ? [k] : []));
    const mark = senders.length ? `; orange marks Byzantine senders ${senders.join(", ")}` : "";
    return [htmlElement("figure", { "data-run": i }, svg, htmlElement("figcaption", {}, `${shortLabels[i]}; brightest: ${format(data.brightest)} or more${mark}`))];
  });
  if (tiles.length) byId("trust").append(...tiles); else byId("trust-section").hidden = true;
}

function animations() {
  byId("animations").append(...data.animations.map((item) => {
    const label = shortLabels[item.run];
    return htmlElement("figure", {}, htmlElement("img", { src: item.source, alt: `${item.kind}: ${label}` }),
      htmlElement("figcaption", {}, `${label}: ${item.caption}`));
  }));
  byId("missing-animations").append(...data.missing_animations.map(([run, reason]) => htmlElement("li", {}, `${shortLabels[run]}: ${reason}`)));
  if (data.not_animated) byId("not-animated").textContent = `${data.not_animated} more run(s) are not animated; the option --animations sets how many are.`;
  if (!data.animations.length && !data.missing_animations.length) byId("animation-section").hidden = true;
}

function repeat() {
  const list = (values, differing = []) => htmlElement("dl", {}, ...Object.entries(values).flatMap(([key, value]) => {
    const attributes = differing.includes(key) ? { class: "differs" } : {};
    return [htmlElement("dt", attributes, key), htmlElement("dd", attributes, value === null ? "none" : String(value))];
  }));
  data.runs.forEach((run, i) => {
    const { versions = {}, ...machine } = run.machine;
    byId("repeat").append(htmlElement("details", { "data-run": i }, htmlElement("summary", {}, run.label),
      htmlElement("pre", {}, run.command), list(run.times), htmlElement("h3", {}, "Configuration"), list(run.config, data.differing),
      htmlElement("h3", {}, "Versions and machine"), list({ ...versions, ...machine })));
  });
}

const seeds = data.runs.reduce((sum, run) => sum + run.seeds.length, 0);
byId("summary").textContent = `${data.setting}: ${data.runs.length} run(s), ${seeds} seed(s). Written ${data.written}.`;
byId("findings").append(...data.findings.map((text) => htmlElement("li", {}, text)));
const level = data.failing === null ? "" : `, here below ${format(data.failing)}`;
byId("findings-note").textContent = `Brackets: ${data.intervals}. Which method ended highest is decided with intervals that hold for all pairs of `
  + "methods together (Bonferroni), paired by seed where the seeds are equal. A seed has failed if it became non-finite or ended less than a quarter of "
  + `the way from the untrained policy to the best run of this page${level}. Fair share: the share of Byzantine senders.`;
if (!data.findings.length) byId("findings-section").hidden = true;
resultsTable();
heatmap();
controls();
drawCurves();
drawDiameters();
trust();
animations();
repeat();
theme();
scrollCues();
redrawOnResize(() => {
  drawCurves();
  drawDiameters();
  scrollCues();
});
