// Draws the leaderboard with the functions of charts.js.
const ALL = "all";
const filters = { task: ALL, federation: ALL, attack: ALL };
let sortBy = { column: 1, ascending: false };
const hiddenProfiles = new Set(); // positions of entries whose performance profile is not drawn
let drawn = []; // cells whose curves are drawn: {entry, setting, attack}
const settingName = (setting) => `${setting.task}, ${setting.federation}`;
const isSetting = (one, other) => one.task === other.task && one.federation === other.federation;
const twoDigits = (value) => (value === null ? "–" : value.toFixed(2).replace("-", "−")); // as in the Markdown table
const score = (estimate) => (estimate === null ? "–" : twoDigits(estimate.value));
const interval = (estimate) => (estimate === null ? "–" : `${score(estimate)} (${twoDigits(estimate.low)} to ${twoDigits(estimate.high)})`);
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
const isFiltered = () => Object.values(filters).some((value) => value !== ALL);
const isRanked = (setting) => data.ranked.some(([task, federation]) => task === setting.task && federation === setting.federation);
const shown = (setting) => (filters.task === ALL || setting.task === filters.task) && (filters.federation === ALL || setting.federation === filters.federation);

// ---- leaderboard ----------------------------------------------------------------------------------------------
// The numbers of a row: from the files if nothing is filtered, otherwise the same formulas on what the filters leave.
function rowOf(entry) {
  const settings = entry.settings.filter((setting) => shown(setting) && (isFiltered() || isRanked(setting)));
  const estimates = settings.map((setting) => (filters.attack === ALL ? setting.score : (setting.cells[filters.attack] || { score: null }).score));
  const complete = estimates.length > 0 && estimates.every((estimate) => estimate !== null);
  const overall = isFiltered() ? (complete ? { value: mean(estimates.map((e) => e.value)), single: estimates.length === 1 ? estimates[0] : null } : null)
    : entry.overall;
  const attacked = settings.flatMap((setting) => Object.entries(setting.cells).filter(([attack]) => (filters.attack === ALL ? attack !== "none" : attack === filters.attack)).flatMap(([, cell]) => cell.seeds));
  const numbers = (values) => values.filter((value) => value !== null);
  const reached = numbers(settings.map((setting) => (filters.attack === ALL ? setting.reached_at : (setting.cells[filters.attack] || { reached_at: null }).reached_at)));
  const verdicts = settings.flatMap((setting) => Object.values(setting.certificates)); // null: not certified
  const against = verdicts.filter((text) => text !== null && !text.startsWith("cleared"));
  const verdict = ["broken", "refused"].find((name) => against.some((text) => text.startsWith(name)));
  return {
    entry, overall, coverage: estimates.filter((estimate) => estimate !== null).length, settings: settings.length,
    worst: [...new Set(settings.map((setting) => setting.worst_attack).filter((attack) => attack !== null))].join(", "),
    ...Object.fromEntries(["robust", "failed"].map((name) => {
      const found = settings.map((setting) => (filters.attack === ALL ? setting : setting.cells[filters.attack] || {})[name]);
      return [name, found.length && found.every((one) => typeof one === "number") ? mean(found) : null];
    })),
    worstSeed: attacked.length ? Math.min(...attacked) : null,
    unattacked: mean(settings.filter((setting) => setting.unattacked).map((setting) => setting.unattacked.value)),
    reached: reached.length === settings.length ? mean(reached) : null, reachedIn: reached.length,
    megabytes: mean(settings.map((setting) => setting.megabytes)), seconds: mean(settings.map((setting) => setting.seconds)),
    verdict: verdict || (verdicts.length && !verdicts.includes(null) ? "cleared" : "–"), reasons: [...new Set(against)].join("; "),
  };
}
function reachedText(row) {
  if (row.reached !== null) return row.reached.toFixed(0);
  if (row.overall === null) return "–";
  return row.reachedIn ? `in ${row.reachedIn} of ${row.settings}` : "never";
}
// Breaks lines between names, not at the hyphens inside.
const attackNames = (row) => (row.worst ? row.worst.split(", ").flatMap((name, i) => [i ? ", " : "", htmlElement("span", {}, name)]) : ["–"]);
function overallText(row) {
  if (row.overall === null) return row.settings ? `– (${row.coverage} of ${row.settings} settings complete)` : "–";
  const full = row.overall.low === undefined ? row.overall.single : row.overall;
  return full ? interval(full) : score(row.overall);
}
const paired = data.scoring === "paired";
const perCent = (value) => (value === null ? "–" : `${(100 * value).toFixed(0)} %`);
const COLUMNS = [
  ["entry", (row) => row.entry.name, (row) => row.entry.name],
  ["score", (row) => (row.overall === null ? null : row.overall.value), overallText],
  ["worst attacks", (row) => row.worst, attackNames],
  ...(paired ? [
    ["interquartile mean", (row) => row.robust, (row) => twoDigits(row.robust)],
    ["seeds lost", (row) => row.failed, (row) => perCent(row.failed)],
  ] : []),
  ["worst seed", (row) => row.worstSeed, (row) => twoDigits(row.worstSeed)],
  ["without attack", (row) => row.unattacked, (row) => twoDigits(row.unattacked)],
  ["to threshold", (row) => row.reached, reachedText],
  ["MB sent", (row) => row.megabytes, (row) => twoDigits(row.megabytes)],
  ["seconds", (row) => row.seconds, (row) => format(row.seconds)],
  ["certificate", (row) => row.verdict, (row) => row.verdict],
];

function drawBoard() {
  const rows = data.entries.map(rowOf).filter((row) => row.settings > 0);
  const value = COLUMNS[sortBy.column][1];
  rows.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === null || y === null) return (x === null) - (y === null); // missing values last, in both directions
    const order = typeof x === "string" ? x.localeCompare(y) : x - y;
    return sortBy.ascending ? order : -order;
  });
  const head = COLUMNS.map(([name], i) => {
    const th = htmlElement("th", { scope: "col", tabindex: 0, ...(i === sortBy.column ? { "aria-sort": sortBy.ascending ? "ascending" : "descending" } : {}) }, name);
    const sort = () => { sortBy = { column: i, ascending: i === sortBy.column ? !sortBy.ascending : ["entry", "to threshold", "seeds lost"].includes(name) }; drawBoard(); };
    th.addEventListener("click", sort);
    th.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    return th;
  });
  const body = rows.map((row) => {
    const tr = htmlElement("tr", { "data-entry": row.entry.name }, ...COLUMNS.map(([name, get, text]) => {
      const found = get(row);
      return htmlElement("td", { "data-value": found === null ? "" : found, ...(name === "certificate" ? { class: "verdict", title: row.reasons } : name === "worst attacks" ? { class: "attacks" } : {}) }, ...[text(row)].flat());
    }));
    tr.addEventListener("click", () => {
      const details = byId("entries").querySelector(`[data-entry="${row.entry.name}"]`);
      details.open = true;
      details.scrollIntoView({ block: "nearest" });
    });
    return tr;
  });
  byId("board").replaceChildren(htmlElement("thead", {}, htmlElement("tr", {}, ...head)), htmlElement("tbody", {}, ...body));
  scrollCues();
}

// ---- what was found, and the scale ------------------------------------------------------------------------------
// One sentence per entry about the ranked settings.
function sentence(entry) {
  const row = rowOf(entry);
  if (entry.overall === null) return null;
  const [kept, low, high] = [entry.overall.value, entry.overall.low, entry.overall.high].map((x) => Math.round(100 * x));
  const how = low > 0 ? `keeps ${kept} % of the gain of federating` : high < 0 ? "is worse than working alone" : `is not clearly better than working alone (${twoDigits(entry.overall.value)})`;
  const price = row.unattacked === null ? "" : `; without liars it has ${Math.round(100 * row.unattacked)} % of the gain`;
  return `${entry.name} ${how} under its worst attacks (${row.worst}), and loses ${perCent(row.failed)} of the seeds${price}.`.replaceAll("-", (dash, at, text) => (/[a-z]/.test(text[at - 1] || "") ? dash : "−"));
}
function drawScale() {
  const said = data.entries.map(sentence).filter((text) => text !== null).map((text) => htmlElement("li", {}, text)), others = said.splice(6);
  byId("findings").append(...said);
  if (others.length) byId("findings").after(htmlElement("details", {}, htmlElement("summary", {}, `the other ${others.length} entries in words`), htmlElement("ul", {}, ...others)));
  const digits = (value, found) => (Math.max(...Object.values(found.references).map(Math.abs)) < 10 ? value.toFixed(2) : value.toFixed(1)).replace("-", "−");
  const rows = data.settings.filter((setting) => setting.references).map((setting) => {
    const { alone, mean: federation, pooled } = setting.references, text = (value) => digits(value, setting), gain = setting.gain;
    const texts = [settingName(setting), text(alone), text(federation), text(pooled), `${text(gain.value)} (${text(gain.low)} to ${text(gain.high)})`, interval(setting.pooled), perCent(setting.failed), setting.ranked ? "yes" : "no"];
    return htmlElement("tr", {}, ...texts.map((one) => htmlElement("td", {}, one)));
  });
  const head = ["setting", "0: one agent alone", "1: the mean without liars", "one learner with all samples", "gain", "score of that learner", "lost", "ranked"];
  byId("scale").append(htmlElement("thead", {}, htmlElement("tr", {}, ...head.map((text) => htmlElement("th", {}, text)))), htmlElement("tbody", {}, ...rows));
  byId("scale-section").hidden = false;
}

function drawSurvives() {
  const attacks = ["none", ...data.attacks], low = data.floor;
  const rows = data.entries.map((entry) => {
    const settings = entry.settings.filter(isRanked);
    return htmlElement("tr", { "data-entry": entry.name }, htmlElement("td", {}, entry.name), ...attacks.map((attack) => {
      const found = settings.filter((setting) => setting.cells[attack]).map((setting) => setting.cells[attack].score.value);
      if (!found.length || entry.overall === null) return htmlElement("td", {}, "");
      const value = mean(found), { background, text } = cividis((value - low) / (1 - low));
      return htmlElement("td", { class: "value", "data-value": value, "data-attack": attack, style: `background:${background};color:${text}` }, twoDigits(value));
    }));
  });
  byId("survives").append(htmlElement("thead", {}, htmlElement("tr", {}, ...["entry", ...attacks].map((text) => htmlElement("th", {}, text)))), htmlElement("tbody", {}, ...rows));
  byId("survives-section").hidden = false;
}

// ---- heatmap and curves ---------------------------------------------------------------------------------------
const currentSetting = () => data.settings[Number(byId("setting").value)];
const isDrawn = (one) => drawn.findIndex((cell) => cell.entry === one.entry && cell.attack === one.attack && isSetting(cell.setting, one.setting));

function drawHeatmap() {
  const setting = currentSetting(), attacks = ["none", ...data.attacks];
  const low = data.floor, range = 1 - low;
  const rows = data.entries.flatMap((entry) => {
    const found = entry.settings.find((one) => isSetting(one, setting));
    if (!found) return [];
    const cells = attacks.map((attack) => {
      const cell = found.cells[attack];
      if (!cell) return htmlElement("td", {}, "");
      const { background, text } = cividis((cell.score.value - low) / range);
      const one = { entry: entry.name, setting, attack };
      const td = htmlElement("td", { class: isDrawn(one) >= 0 ? "value drawn" : "value", tabindex: 0, "data-value": cell.score.value, "data-attack": attack,
        style: `background:${background};color:${text}`,
        title: `${interval(cell.score)}; seeds ${cell.seeds.map(twoDigits).join(", ")}; mean return ${format(cell.average)}, at the end ${format(cell.final)}` }, score(cell.score));
      const toggle = () => { const at = isDrawn(one); if (at >= 0) drawn.splice(at, 1); else drawn.push(one); drawHeatmap(); drawCurves(); };
      td.addEventListener("click", toggle);
      td.addEventListener("keydown", (event) => { if (event.key === "Enter") toggle(); });
      return td;
    });
    return [htmlElement("tr", { "data-entry": entry.name }, htmlElement("td", {}, entry.name), ...cells)];
  });
  byId("heatmap").replaceChildren(
    htmlElement("thead", {}, htmlElement("tr", {}, ...["entry", ...attacks].map((text) => htmlElement("th", {}, text)))),
    htmlElement("tbody", {}, ...rows));
}

function curveOf(one) {
  const entry = data.entries.find((entry) => entry.name === one.entry);
  return entry.settings.find((setting) => isSetting(setting, one.setting)).cells[one.attack].curve;
}
function drawCurves() {
  const labels = drawn.map((one) => `${one.entry}, ${one.attack} (${settingName(one.setting)})`);
  byId("legend").replaceChildren(...drawn.map((one, i) => {
    const button = htmlElement("button", { type: "button", "aria-pressed": "true" }, swatch(i), labels[i]);
    button.addEventListener("click", () => { drawn.splice(i, 1); drawHeatmap(); drawCurves(); });
    return button;
  }));
  const lines = drawn.map((one, i) => { const { x, mean: y, low, high } = curveOf(one); return { run: i, x, y, low, high }; });
  chart(byId("curves"), lines, { xlabel: "trajectories per agent", ylabel: "honest return", labels });
}
// At first: the best and the worst entry under the attack that is worst for the best.
function firstCurves() {
  const setting = currentSetting();
  const found = data.entries.flatMap((entry) => entry.settings.filter((one) => isSetting(one, setting)).map((one) => ({ entry: entry.name, cells: one.cells, worst: one.worst_attack })));
  if (!found.length) return [];
  const attack = found[0].worst || Object.keys(found[0].cells)[0];
  const having = found.filter((one) => one.cells[attack]);
  return [...new Set([having[0], having[having.length - 1]])].filter(Boolean).map((one) => ({ entry: one.entry, setting, attack }));
}

// ---- profiles, improvement, options ---------------------------------------------------------------------------
function drawProfiles() {
  const lines = data.entries.flatMap((entry, i) => (entry.profile === null ? [] : [{ run: i, x: data.levels, y: entry.profile }]));
  byId("profile-section").hidden = lines.length === 0;
  if (!lines.length) return;
  const kept = lines.filter((line) => !hiddenProfiles.has(line.run));
  chart(byId("profiles"), kept, { xlabel: "score", ylabel: "share of seeds at least as good", labels: data.entries.map((entry) => entry.name) });
  byId("profile-legend").replaceChildren(...lines.map(({ run }) => {
    const button = htmlElement("button", { type: "button", "aria-pressed": String(!hiddenProfiles.has(run)) }, swatch(run), data.entries[run].name);
    button.addEventListener("click", () => { if (!hiddenProfiles.delete(run)) hiddenProfiles.add(run); drawProfiles(); });
    return button;
  }));
}
function improvementTable() {
  const names = data.entries.map((entry) => entry.name);
  const rows = data.improvement.map((row, i) => htmlElement("tr", {}, htmlElement("td", {}, `${i + 1} ${names[i]}`), ...row.map((cell) => {
    if (cell === null) return htmlElement("td", {}, "");
    const { background, text } = cividis(cell.value);
    return htmlElement("td", { class: "value", "data-value": cell.value, style: `background:${background};color:${text}`, title: interval(cell) }, score(cell));
  })));
  byId("improvement").append(htmlElement("thead", {}, htmlElement("tr", {}, htmlElement("th", {}, ""), ...names.map((name, i) => htmlElement("th", { title: name }, String(i + 1))))),
    htmlElement("tbody", {}, ...rows));
}
function entryList() {
  const list = (values) => htmlElement("dl", {}, ...Object.entries(values).flatMap(([key, value]) => [htmlElement("dt", {}, key), htmlElement("dd", {}, value === null ? "not certified" : String(value))]));
  byId("entries").append(...data.entries.map((entry) => htmlElement("details", { "data-entry": entry.name }, htmlElement("summary", {}, entry.name),
    ...entry.settings.flatMap((setting) => [htmlElement("h3", {}, `${settingName(setting)} (${setting.machine.join(", ")})`), list(setting.options), list(setting.certificates)]))));
}

function controls() {
  const values = { task: [...new Set(data.settings.map((s) => s.task))], federation: [...new Set(data.settings.map((s) => s.federation))], attack: ["none", ...data.attacks] };
  for (const [name, found] of Object.entries(values)) {
    byId(name).append(...[ALL, ...found].map((value) => htmlElement("option", { value }, value)));
    byId(name).addEventListener("change", () => { filters[name] = byId(name).value; drawBoard(); });
  }
  data.settings.forEach((setting, i) => {
    if (!data.entries.some((entry) => entry.settings.some((one) => isSetting(one, setting)))) return;
    const { alone, mean: federation } = setting.references;
    const own = setting.on_entry_seeds || {}; // empty if the references make no scale
    const shifted = own.mean === undefined ? "" : ` (scores on the entries' seeds ${twoDigits(own.alone)} and ${twoDigits(own.mean)})`;
    byId("setting").append(htmlElement("option", { value: i }, `${settingName(setting)}: ${setting.byzantine} of ${setting.agents} Byzantine, alone ${format(alone, alone < 10 ? 2 : 1)}, mean ${format(federation, federation < 10 ? 2 : 1)}${shifted}`));
  });
  byId("setting").addEventListener("change", () => { drawn = firstCurves(); drawHeatmap(); drawCurves(); });
}

const cells = data.entries.reduce((sum, entry) => sum + entry.settings.reduce((inner, setting) => inner + Object.keys(setting.cells).length, 0), 0);
byId("summary").textContent = `Suite ${data.suite.name} (${data.suite.summary}; hash ${data.suite.hash}): ${data.entries.length} entries, ${cells} trainings of ${data.suite.seeds} seeds.`;
byId("measure").textContent = data.measure === "average" ? "mean return over the run" : "mean return over the last tenth of the run";
byId("statistic").textContent = paired
  ? "mean over seeds of the gain over one agent alone with the same seed, divided by the mean gain of the federation; the worst attack is chosen on other seeds than those that are scored, and intervals contain the noise of the references. Seeds lost: the share on which the entry is worse than one agent alone"
  : "interquartile mean over seeds with its bootstrap interval";
controls();
if (paired) {
  drawScale();
  drawSurvives();
}
drawBoard();
drawn = firstCurves();
drawHeatmap();
drawCurves();
drawProfiles();
improvementTable();
entryList();
theme();
scrollCues();
redrawOnResize(() => {
  scrollCues();
  drawCurves();
  drawProfiles();
});
