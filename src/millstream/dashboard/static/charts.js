// Small multiples over one time range, with a cursor that all of them share.

import { attribute, calmly, h, keyed, s, text } from "./dom.js";
import { bytes, clock, count, duration, rate, whole } from "./format.js";
import { isMarked } from "./event_kinds.js";
import { at, points } from "./series.js";
import { on, put, state } from "./store.js";

const WIDE = 600;
const HIGH = 100;
const HEADROOM = 1.3; // for the label of the largest value
const LEAST = 60;
const RANGES = [
  [300, "5 min"],
  [900, "15 min"],
  [3600, "1 h"],
];
const CHARTS = [
  { title: "Throughput", lines: [["rows_per_second", "rows"]], format: rate },
  {
    title: "Latency",
    lines: [
      ["latency_p50", "p50"],
      ["latency_p95", "p95"],
      ["latency_p99", "p99"],
    ],
    format: duration,
  },
  { title: "Backlog", lines: [["backlog", "waiting"]], format: count },
  { title: "Nodes", lines: [["nodes", "active"]], format: whole, isStepped: true },
  { title: "State", lines: [["state_bytes", "size"]], format: bytes },
  { title: "Checkpoint size", lines: [["checkpoint_bytes", "written"]], format: bytes },
  { title: "Checkpoint age", lines: [["checkpoint_age", "age"]], format: duration },
];

export function charts(place, rangePlace, tablePlace) {
  const drawn = CHARTS.map((chart) => made(chart));
  place.append(...drawn.map((each) => each.figure), axis());
  ranges(rangePlace);
  const draw = calmly(450, () => drawn.forEach(update));
  on(["history", "range", "events"], draw);
  on(["range"], () => drawn.forEach(update));
  on(["cursor"], () => drawn.forEach(readings));
  pointing(place);
  tablePlace.addEventListener("toggle", () => table(tablePlace));
  on(
    ["history"],
    calmly(2000, () => table(tablePlace)),
  );
}

/** The time that is shown: the range, or all of a shorter run. */
export function span() {
  const last = state.history.times.at(-1) ?? state.run?.started ?? 0;
  const first = Math.min(state.history.times[0] ?? last, last - LEAST);
  return [Math.max(first, last - state.range), last];
}

function made(chart) {
  const values = chart.lines.map(() => h("output"));
  const figure = h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, h("span", { class: "name" }, chart.title), ...named(chart, values)),
  );
  const marks = s("g", { class: "marks" });
  const area = s("path", { class: "area" });
  const lines = chart.lines.map((_, level) => s("path", { class: `line l${level}` }));
  const cursor = s("path", { class: "cursor" });
  const top = h("span", { class: "most", "aria-hidden": "true" });
  const drawing = s(
    "svg",
    { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    marks,
    area,
    ...lines,
    cursor,
  );
  figure.append(h("div", { class: "plot" }, drawing, top));
  return { chart, figure, values, marks, area, lines, cursor, top };
}

const named = (chart, values) =>
  chart.lines.map(([, name], at) =>
    h(
      "span",
      { class: `reading l${at}` },
      chart.lines.length > 1 ? h("span", { class: "of" }, name) : null,
      values[at],
    ),
  );

function update(each) {
  const [from, to] = span();
  const { chart } = each;
  const found = chart.lines.map(([name]) => points(state.history, name, from, to));
  each.figure.hidden = state.history.times.length > 0 && found.flat().length === 0;
  const most = Math.max(...found.flat().map(([, value]) => value), 0) || 1;
  const place = ([time, value]) => [
    ((time - from) / (to - from)) * WIDE,
    HIGH - (value / (most * HEADROOM)) * (HIGH - 4),
  ];
  const paths = found.map((line) => path(line.map(place), chart.isStepped));
  each.lines.forEach((line, at) => attribute(line, "d", paths[at]));
  const first = found[0].length > 0 ? place(found[0][0])[0] : 0;
  const last = found[0].length > 0 ? place(found[0].at(-1))[0] : 0;
  attribute(
    each.area,
    "d",
    paths[0] && `${paths[0]}L${last.toFixed(1)} ${HIGH}L${first.toFixed(1)} ${HIGH}Z`,
  );
  const marked = state.events.filter((event) => event.time > from && isMarked(event));
  keyed(
    each.marks,
    marked,
    (event) => event.number,
    () => s("path"),
    (mark, event) => {
      attribute(mark, "class", event.kind);
      attribute(
        mark,
        "d",
        `M${(((event.time - from) / (to - from)) * WIDE).toFixed(1)} ${HIGH - 16}V${HIGH}`,
      );
    },
  );
  text(each.top, found.flat().length > 0 ? chart.format(most) : "");
  readings(each);
}

function path(places, isStepped) {
  if (places.length === 0) return "";
  const texts = places.map(([x, y]) => [x.toFixed(1), y.toFixed(1)]);
  const rest = texts.slice(1).map(([x, y]) => (isStepped ? `H${x}V${y}` : `L${x} ${y}`));
  return `M${texts[0].join(" ")}${rest.join("")}`;
}

function readings({ chart, values, cursor }) {
  const { cursor: share, history } = state;
  const [from, to] = span();
  chart.lines.forEach(([name], level) => {
    const value =
      share === null
        ? (history.series[name]?.at(-1) ?? null)
        : at(history, name, from + share * (to - from));
    text(values[level], chart.format(value));
  });
  attribute(cursor, "d", share === null ? null : `M${(share * WIDE).toFixed(1)} 0V${HIGH}`);
}

function pointing(place) {
  place.addEventListener("pointermove", (event) => {
    const plot = event.target.closest(".plot");
    if (plot === null) return put({ cursor: null });
    const box = plot.getBoundingClientRect();
    return put({ cursor: Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) });
  });
  place.addEventListener("pointerleave", () => put({ cursor: null }));
}

function axis() {
  const ends = [h("span"), h("span")];
  on(["range", "cursor", "history"], () => {
    const [from, to] = span();
    const isPointed = state.cursor !== null;
    text(
      ends[0],
      isPointed
        ? clock(from + state.cursor * (to - from))
        : `${duration(to - from).replace(/ 0 (s|min)$/, "")} ago`,
    );
    text(ends[1], isPointed ? "" : "now");
  });
  return h("p", { class: "axis", "aria-hidden": "true" }, ...ends);
}

function ranges(place) {
  const buttons = RANGES.map(([seconds, name]) =>
    h("button", { type: "button", onclick: () => put({ range: seconds }) }, name),
  );
  place.append(...buttons);
  on(["range"], ({ range }) => {
    RANGES.forEach(([seconds], at) =>
      attribute(buttons[at], "aria-pressed", String(seconds === range)),
    );
  });
}

function table(place) {
  if (!place.open) return;
  const columns = CHARTS.flatMap((chart) =>
    chart.lines.map(([name, label]) => [chart, name, label]),
  );
  const { times, series } = state.history;
  const last = times
    .map((time, index) => [time, index])
    .slice(-30)
    .reverse();
  const heads = columns.map(([chart, , label]) =>
    h("th", { scope: "col" }, chart.lines.length > 1 ? `${chart.title} ${label}` : chart.title),
  );
  const rows = last.map(([time, index]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, clock(time)),
      ...columns.map(([chart, name]) => h("td", {}, chart.format(series[name]?.[index] ?? null))),
    ),
  );
  place.lastElementChild.replaceChildren(
    h(
      "div",
      {
        class: "scroll tall",
        tabindex: "0",
        role: "group",
        "aria-label": "Table of the newest points",
      },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Time"), ...heads)),
        h("tbody", {}, ...rows),
      ),
    ),
  );
}
