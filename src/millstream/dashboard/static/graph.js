// The workflow as a graph with the rates and watermarks of its edges, and its jobs as a table.

import { attribute, h, keyed, s, text } from "./dom.js";
import { clock, count, duration, rate, whole } from "./format.js";
import { layout } from "./graph_layout.js";
import { on } from "./store.js";

const ACROSS = { layer: 265, row: 100 };
const DOWN = { layer: 92, row: 176 };
const LONGEST = { across: 26, down: 22 };
const NARROW = 640;
const COLUMNS = [
  ["Job", (job) => (job.fused.length > 0 ? `${job.name} with ${job.fused.join(", ")}` : job.name)],
  ["In", (job) => rate(job.rows_per_second)],
  ["Out", (job) => rate(job.outputs_per_second)],
  ["Reduce", (job) => duration(job.reduce_seconds)],
  ["Keys", (job) => count(job.state_keys)],
  ["Watermark", (job) => clock(job.watermark)],
  ["Lag", (job) => duration(job.lag)],
  ["Late", (job) => whole(job.late)],
  ["Ahead", (job) => whole(job.ahead)],
  ["Untimed", (job) => whole(job.untimed)],
];

export function graph(place, table) {
  let drawn = null;
  const draw = ({ graph: now }) => {
    const isDown = place.clientWidth < NARROW;
    const shape = JSON.stringify([
      isDown,
      now.vertices,
      now.edges.map(({ source, target }) => [source, target]),
    ]);
    if (drawn?.shape !== shape) {
      drawn = { shape, ...made(now, isDown) };
      place.replaceChildren(drawn.element);
    }
    now.edges.forEach((edge, at) => update(drawn.edges[at], edge));
  };
  let newest = null;
  const show = (known) => {
    draw((newest = known));
    for (const each of known.backlog) {
      const place = drawn.waiting.get(each.source);
      if (place !== undefined) text(place, waiting(each));
    }
  };
  on(["graph", "backlog"], show);
  new ResizeObserver(() => newest && show(newest)).observe(place);
  jobs(table);
}

function made({ vertices, edges }, isDown) {
  const { layers, rows, places } = layout({ vertices, edges });
  const step = isDown ? DOWN : ACROSS;
  const [deep, wide] = [(layers - 1) * step.layer, rows * step.row];
  const [w, high] = isDown ? [Math.max(wide, 330), deep + 84] : [deep + 220, wide + 30];
  const at = (id) => {
    const { layer, row } = places.get(id);
    return isDown
      ? [w / 2 + row * step.row - 70, 24 + layer * step.layer]
      : [24 + layer * step.layer, high / 2 + row * step.row - 4];
  };
  const marks = vertices.map((vertex) => mark(vertex, at(vertex.id), isDown));
  const sources = vertices.flatMap((vertex, index) =>
    vertex.kind === "source" ? [[vertex.name, marks[index].querySelector(".waiting")]] : [],
  );
  const lines = edges.map((edge) => line(at(edge.source), at(edge.target), isDown));
  const element = s(
    "svg",
    {
      viewBox: `0 0 ${w} ${high}`,
      width: w,
      height: high,
      role: "img",
      "aria-label": described(vertices, edges),
    },
    ...lines.map((each) => each.element),
    ...marks,
  );
  return { element, edges: lines, waiting: new Map(sources) };
}

function line([x1, y1], [x2, y2], isDown) {
  const bend = isDown
    ? `M${x1} ${y1 + 15}C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2 - 15}`
    : `M${x1 + 15} ${y1}C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2 - 15} ${y2}`;
  // Near its target a stream is clear of the text below its source.
  const [x, y] = isDown ? [x2 + 9, y2 - 34] : [x1 + (x2 - x1) * 0.74, y1 + (y2 - y1) * 0.84 - 9];
  const path = s("path", { class: "stream", d: bend });
  const figures = s("text", { x, y, "text-anchor": isDown ? "start" : "middle", class: "rate" });
  const time = s("text", {
    x,
    y: isDown ? y + 15 : y - 15,
    "text-anchor": isDown ? "start" : "middle",
    class: "watermark",
  });
  return {
    element: s("g", {}, path, s("path", { class: "current", d: bend }), figures, time),
    path,
    figures,
    time,
  };
}

function mark(vertex, [x, y], isDown) {
  const [left, top] = isDown ? [18, -1] : [-10, 31];
  const most = isDown ? LONGEST.down : LONGEST.across;
  const shapes = {
    source: () => s("path", { d: "M-8-8 8 0-8 8Z" }),
    step: () => s("circle", { r: 4 }),
    job: () => s("g", {}, s("circle", { r: 10 }), s("circle", { class: "hub", r: 3.5 })),
    sink: () => s("rect", { x: -8, y: -8, width: 16, height: 16, rx: 2 }),
  };
  return s(
    "g",
    { class: `vertex ${vertex.kind}`, transform: `translate(${x} ${y})` },
    shapes[vertex.kind](),
    s("title", {}, `${vertex.kind} ${vertex.name ?? ""} ${vertex.text}`),
    s("text", { class: "name", x: left, y: top }, vertex.name ?? vertex.kind),
    s("text", { class: "what", x: left, y: top + 16 }, shortened(vertex.text, most)),
    s("text", { class: "what waiting", x: left, y: top + 32 }),
  );
}

function waiting({ amount, unit }) {
  return amount === null ? "" : `${count(amount)} ${unit} waiting`;
}

function update({ element, path, figures, time }, edge) {
  const rows = edge.rows_per_second;
  text(figures, rows === null ? "" : rate(rows));
  text(time, edge.watermark === null ? "" : `watermark ${clock(edge.watermark)}`);
  attribute(
    path,
    "stroke-width",
    rows === null ? 1.5 : (1.5 + Math.log10(1 + rows) * 0.9).toFixed(1),
  );
  attribute(element, "class", rows ? "flows" : null);
}

const shortened = (words, most) => (words.length > most ? `${words.slice(0, most - 1)}…` : words);

function described(vertices, edges) {
  const name = new Map(vertices.map((vertex) => [vertex.id, vertex.name ?? vertex.text]));
  return `Workflow: ${edges.map(({ source, target }) => `${name.get(source)} to ${name.get(target)}`).join(", ")}`;
}

function jobs(table) {
  const body = h("tbody");
  table.append(
    h("caption", { class: "unseen" }, "Jobs in the newest epochs"),
    h("thead", {}, h("tr", {}, ...COLUMNS.map(([name]) => h("th", { scope: "col" }, name)))),
    body,
  );
  on(["jobs"], ({ jobs: now }) => {
    const row = () =>
      h("tr", {}, h("th", { scope: "row" }), ...COLUMNS.slice(1).map(() => h("td")));
    keyed(
      body,
      now,
      (job) => job.name,
      row,
      (cells, job) => {
        COLUMNS.forEach(([, show], at) => text(cells.children[at], show(job)));
      },
    );
  });
}
