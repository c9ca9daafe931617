// The middle of the ring: the run as a whole, or the node that is selected or under the pointer.

import { attribute, h, text } from "./dom.js";
import { bytes, count, duration, percent, shortId, whole } from "./format.js";
import { on, state } from "./store.js";

export class Centre {
  constructor() {
    this.figure = h("strong");
    this.unit = h("span", { class: "unit" });
    this.lines = [h("span"), h("span"), h("span"), h("span")];
    this.element = h("div", { class: "centre" }, this.figure, this.unit, ...this.lines);
    on(["run", "throughput", "nodes", "selected", "hovered"], () => this.draw());
  }

  draw() {
    const node = state.nodes.find((each) => each.id === (state.hovered ?? state.selected));
    const parts = node === undefined ? ofRun(state.run, state.throughput) : ofNode(node);
    attribute(this.element, "class", node === undefined ? "centre" : "centre of-node");
    text(this.figure, parts[0]);
    text(this.unit, parts[1]);
    this.lines.forEach((line, at) => text(line, parts[at + 2]));
  }
}

function ofRun(run, throughput) {
  const nodes =
    run.active === run.target ? `${run.active} nodes` : `${run.active} of ${run.target} nodes`;
  return [
    count(throughput.rows_per_second),
    "rows a second",
    `epoch ${whole(run.committed)}`,
    `${duration(throughput.latency_p50)} median`,
    nodes,
    run.pending > 0 ? `${whole(run.pending)} slots to move` : "",
  ];
}

function ofNode(node) {
  const role = node.is_slow ? "slow" : node.role;
  return [
    shortId(node.id),
    node.zone ? `${role} in ${node.zone}` : role,
    `${whole(node.slots)} slots, ${whole(node.copies)} copies`,
    node.cpu === null ? "no load yet" : `CPU ${percent(node.cpu)}, queue ${duration(node.queue)}`,
    node.memory === null ? "" : `${bytes(node.memory)} of memory`,
    node.host,
  ];
}
