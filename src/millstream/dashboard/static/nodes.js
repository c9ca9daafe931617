// The nodes as a table: place on the ring, CPU, queue, slots, memory. And the hot keys.

import { attribute, h, keyed, text } from "./dom.js";
import { bytes, count, duration, percent, shortId, whole } from "./format.js";
import { on, put, state } from "./store.js";

const COLUMNS = [
  { name: "Node", of: (node) => node.id },
  { name: "Zone", of: (node) => node.zone, show: (node) => node.zone || "–" },
  { name: "Host", of: (node) => node.host, show: (node) => node.host },
  {
    name: "Role",
    of: (node) => node.role,
    show: (node) => (node.is_slow ? `${node.role}, slow` : node.role),
  },
  { name: "Slots", of: (node) => node.slots, show: (node) => whole(node.slots) },
  { name: "Copies", of: (node) => node.copies, show: copies },
  {
    name: "CPU",
    of: (node) => node.cpu,
    show: (node) => percent(node.cpu),
    bar: (node) => node.cpu,
  },
  { name: "Queue", of: (node) => node.queue, show: (node) => duration(node.queue) },
  { name: "Rows", of: (node) => node.rows, show: (node) => count(node.rows) },
  { name: "Memory", of: (node) => node.memory, show: (node) => bytes(node.memory) },
  { name: "State", of: (node) => node.state_bytes, show: (node) => bytes(node.state_bytes) },
];

function copies(node) {
  return node.in_sync < node.copies
    ? `${whole(node.in_sync)} of ${whole(node.copies)}`
    : whole(node.copies);
}

/**
 * The table. Rows are sorted when a column is chosen and when members change; live figures do not
 * reorder them, so that a row stays where it is read.
 */
export function nodes(table) {
  let sorting = { at: 0, sign: 1 };
  let order = new Map();
  const body = h("tbody");
  const heads = COLUMNS.map(({ name }, at) =>
    h("th", { scope: "col" }, h("button", { type: "button", onclick: () => sortBy(at) }, name)),
  );
  table.append(
    h("caption", { class: "unseen" }, "Nodes; choose a column to sort by it"),
    h("thead", {}, h("tr", {}, ...heads)),
    body,
  );
  const sort = (members) => {
    const { of } = COLUMNS[sorting.at];
    const sorted = [...members].sort((one, other) => sorting.sign * compare(of(one), of(other)));
    order = new Map(sorted.map((node, at) => [node.id, at]));
  };
  const draw = () => {
    const members = state.nodes;
    if (members.length !== order.size || members.some((node) => !order.has(node.id))) sort(members);
    const sorted = [...members].sort((one, other) => order.get(one.id) - order.get(other.id));
    keyed(body, sorted, (node) => node.id, row, update);
  };
  const sortBy = (at) => {
    const isNumeric = typeof COLUMNS[at].of(state.nodes[0] ?? {}) === "number";
    sorting = { at, sign: sorting.at === at ? -sorting.sign : isNumeric ? -1 : 1 };
    heads.forEach((head, each) =>
      attribute(head, "aria-sort", each === at && (sorting.sign > 0 ? "ascending" : "descending")),
    );
    order = new Map();
    draw();
  };
  attribute(heads[0], "aria-sort", "ascending");
  on(["nodes"], draw);
  on(["selected", "nodes"], ({ selected }) => {
    for (const [id, element] of body.keyedChildren ?? []) {
      attribute(element, "class", id === selected && "chosen");
      attribute(element.querySelector("button"), "aria-pressed", String(id === selected));
    }
  });
}

const compare = (one, other) => (one === other ? 0 : (one ?? -1) < (other ?? -1) ? -1 : 1);

function row(node) {
  const choose = () => put({ selected: state.selected === node.id ? null : node.id });
  const cells = COLUMNS.slice(1).map(({ bar }) => h("td", bar ? { class: "bar" } : {}));
  return h(
    "tr",
    { "data-node": node.id },
    h("th", { scope: "row" }, h("button", { type: "button", onclick: choose }, shortId(node.id))),
    ...cells,
  );
}

function update(cells, node) {
  COLUMNS.forEach(({ show, bar }, at) => {
    if (at === 0) return;
    const cell = cells.children[at];
    text(cell, show(node));
    if (!bar) return;
    const share = Math.min(1, bar(node) ?? 0).toFixed(2);
    if (cell.shownShare !== share) cell.style.setProperty("--share", (cell.shownShare = share));
  });
}

const HOT = [
  ["Key", (hot) => hot.key],
  ["Job", (hot) => hot.job],
  ["Share", (hot) => percent(hot.share)],
  ["Slot", (hot) => whole(hot.slot)],
  ["Owner", (hot) => shortId(hot.owner)],
];

export function hotKeys(table) {
  const body = h("tbody");
  table.append(
    h("caption", { class: "unseen" }, "Keys with a large share of a job's rows"),
    h("thead", {}, h("tr", {}, ...HOT.map(([name]) => h("th", { scope: "col" }, name)))),
    body,
  );
  const none = h(
    "tr",
    {},
    h("td", { colspan: HOT.length, class: "none" }, "No key has a large share of the rows."),
  );
  on(["hot_keys"], ({ hot_keys: keys }) => {
    const row = () => h("tr", {}, h("th", { scope: "row" }), ...HOT.slice(1).map(() => h("td")));
    keyed(
      body,
      keys,
      (hot) => `${hot.job} ${hot.key}`,
      row,
      (cells, hot) => {
        HOT.forEach(([, show], at) => text(cells.children[at], show(hot)));
      },
    );
    if (keys.length === 0) body.append(none);
    else none.remove();
  });
}
