// The ring: owners, copies, tokens, load and hot keys of all nodes, as one drawing.
//
// A node is one group, with one path for all of its slots and one for all of its copies, so that an
// update changes few attributes. It is a list box: arrow keys go clockwise from node to node.

import { colouring } from "./colours.js";
import { attribute, h, keyed, s, text } from "./dom.js";
import { shortId } from "./format.js";
import { angle, band, byPair, centre, handovers, joined, point } from "./geometry.js";
import { Centre } from "./ring_centre.js";
import { legend } from "./ring_legend.js";
import { Moves } from "./ring_moves.js";
import { on, put, state } from "./store.js";

const VIEW = "-316 -300 632 600";
const OWN = [196, 220];
const COPY = [180, 192];
const COPY_STEP = 15;
const PADDLE = [227, 273];
const LABEL = 282;
const FEW = 16;
const SCAR = 8000;

export function ring(place, legendPlace) {
  const nodes = s("g", { class: "nodes" });
  const hot = s("g", { class: "hot" });
  const scars = s("g", { class: "scars" });
  const backups = s("g", { class: "backups" });
  const moves = new Moves(COPY[0] - 6, OWN);
  const drawing = s(
    "svg",
    {
      viewBox: VIEW,
      class: "ring",
      role: "listbox",
      tabindex: "0",
      "aria-label": "Nodes on the ring",
    },
    s("circle", { class: "bed", r: (OWN[0] + OWN[1]) / 2, "stroke-width": OWN[1] - OWN[0] }),
    s("circle", { class: "reach", r: PADDLE[1] }),
    nodes,
  );
  // What moves is a drawing of its own, so that a frame of it does not paint all nodes again.
  const overlay = s(
    "svg",
    { viewBox: VIEW, class: "overlay", "aria-hidden": "true" },
    backups,
    moves.chords,
    moves.parts,
    moves.flights,
    hot,
    scars,
  );
  place.append(h("div", { class: "wheel" }, drawing, overlay, new Centre().element));
  listen(drawing);

  let before = null;
  on(["ring", "nodes"], ({ ring: now, nodes: members }) => {
    const colours = colouring(members);
    const shown = layout(now, members, colours);
    if (before !== null && before.ring.version !== now.version) {
      moves.flown(byPair(handovers(before.ring.arcs, now.arcs)), now.slots);
      for (const node of before.shown) {
        const isLost =
          state.run.lost.includes(node.id) && !members.some((each) => each.id === node.id);
        if (isLost && node.middle !== null) scars.append(scar(node, now.slots));
      }
    }
    before = { ring: now, shown };
    const isMany = shown.length > FEW;
    for (const each of [drawing, overlay])
      if (each.classList.contains("many") !== isMany) each.classList.toggle("many", isMany);
    keyed(
      nodes,
      shown,
      (node) => node.id,
      made,
      (group, node) => draw(group, node, now, shown.length),
    );
    moves.pending(byPair(now.moves), shown, now.slots, colours);
    legend(legendPlace, now, members, colours);
    focus();
  });
  on(["hot_keys", "ring"], ({ hot_keys: keys, ring: { slots } }) => {
    const marks = keys.slice(0, 12);
    keyed(
      hot,
      marks,
      (key) => `${key.job} ${key.key}`,
      () => s("circle", { r: 3.2 }),
      (mark, key) => {
        const [x, y] = point((OWN[0] + OWN[1]) / 2, angle(key.slot + 0.5, slots));
        attribute(mark, "cx", x.toFixed(1));
        attribute(mark, "cy", y.toFixed(1));
      },
    );
  });
  on(["selected", "hovered"], focus);

  function focus() {
    const node = state.hovered ?? state.selected;
    const found = before?.shown.find((each) => each.id === node) ?? null;
    drawing.classList.toggle("focused", found !== null);
    for (const [id, group] of nodes.keyedChildren ?? []) {
      const isNear = found !== null && (id === node || found.backups.has(id));
      if (group.classList.contains("near") !== isNear) group.classList.toggle("near", isNear);
      attribute(group, "aria-selected", String(id === state.selected));
    }
    attribute(drawing, "aria-activedescendant", state.selected && `node-${state.selected}`);
    const lines = found === null ? [] : moves.backupLines(found, before.shown, before.ring.slots);
    keyed(
      backups,
      lines,
      (line) => line.key,
      () => s("path"),
      (path, line) => attribute(path, "d", line.path),
    );
  }
}

function layout(ring, members, colours) {
  const own = new Map();
  const copies = new Map();
  const backups = new Map();
  const tokens = new Map();
  const add = (map, key, value) =>
    map.has(key) ? map.get(key).push(value) : map.set(key, [value]);
  for (const arc of ring.arcs) {
    add(own, arc.owner, arc);
    arc.copies.forEach((node, level) => {
      add(copies, node, { ...arc, level });
      add(backups, arc.owner, node);
    });
  }
  for (const token of ring.tokens) add(tokens, token.node, token.slot);
  return members
    .filter((node) => own.has(node.id) || copies.has(node.id))
    .map((node) => ({
      ...node,
      colour: colours.of.get(node.id),
      own: joined(own.get(node.id) ?? []),
      copiesAt: copies.get(node.id) ?? [],
      backups: new Set(backups.get(node.id)),
      tokens: tokens.get(node.id) ?? [],
      middle: centre(own.get(node.id) ?? []),
    }))
    .sort((one, other) => (one.middle ?? Infinity) - (other.middle ?? Infinity));
}

function made(node) {
  return s(
    "g",
    { role: "option", id: `node-${node.id}`, "data-node": node.id },
    s("path", { class: "own" }),
    s("path", { class: "copy" }),
    s("path", { class: "token" }),
    s("line", { class: "paddle", pathLength: 100 }),
    s("text", { class: "label" }),
  );
}

function draw(group, node, { slots }, count) {
  const [own, copy, token, paddle, label] = group.children;
  const gap = count > 60 ? 1 : 2;
  attribute(
    group,
    "class",
    `node ${node.colour} ${node.role}${node.is_slow ? " slow" : ""}${group.classList.contains("near") ? " near" : ""}`,
  );
  attribute(
    group,
    "aria-label",
    `node ${shortId(node.id)}, ${node.zone ? `${node.zone}, ` : ""}${node.slots} slots`,
  );
  attribute(
    own,
    "d",
    node.own.map((arc) => band(arc.start, arc.stop, slots, ...OWN, gap)).join(""),
  );
  attribute(
    copy,
    "d",
    node.copiesAt
      .map((arc) =>
        band(
          arc.start,
          arc.stop,
          slots,
          COPY[0] - arc.level * COPY_STEP,
          COPY[1] - arc.level * COPY_STEP,
          gap,
        ),
      )
      .join(""),
  );
  attribute(token, "d", node.tokens.map((slot) => tick(slot, slots)).join(""));
  attribute(paddle, "visibility", node.middle === null ? "hidden" : null);
  if (node.middle === null) return;
  const at = angle(node.middle, slots);
  const [[x1, y1], [x2, y2]] = PADDLE.map((radius) => point(radius, at));
  for (const [name, value] of Object.entries({ x1, y1, x2, y2 }))
    attribute(paddle, name, value.toFixed(1));
  const level = Math.round(Math.min(1, node.cpu ?? 0) * 50) * 2;
  attribute(paddle, "stroke-dashoffset", 100 - level);
  const isHot = (node.cpu ?? 0) > 0.9;
  if (paddle.classList.contains("high") !== isHot) paddle.classList.toggle("high", isHot);
  labelled(label, node, at, count);
}

function tick(slot, slots) {
  const at = angle(slot, slots);
  return `M${point(OWN[0] - 2, at).map((each) => each.toFixed(1))}L${point(OWN[1] + 4, at).map((each) => each.toFixed(1))}`;
}

function labelled(label, node, at, count) {
  attribute(label, "visibility", count > FEW ? "hidden" : null);
  if (count > FEW) return;
  const [x, y] = point(LABEL, at);
  attribute(label, "x", x.toFixed(1));
  attribute(label, "y", (y + 4).toFixed(1));
  attribute(label, "text-anchor", Math.abs(x) < 40 ? "middle" : x > 0 ? "start" : "end");
  text(label, node.id.slice(0, 4));
}

function scar(node, slots) {
  const [x, y] = point((OWN[0] + OWN[1]) / 2, angle(node.middle, slots));
  const mark = s(
    "g",
    { transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` },
    s("circle", { r: 13 }),
    s("path", { d: "M-4-4 4 4M-4 4 4-4" }),
  );
  setTimeout(() => mark.remove(), SCAR);
  return mark;
}

function listen(drawing) {
  const nodeAt = (event) => event.target.closest?.("[data-node]")?.dataset.node ?? null;
  drawing.addEventListener("pointerover", (event) => put({ hovered: nodeAt(event) }));
  drawing.addEventListener("pointerleave", () => put({ hovered: null }));
  drawing.addEventListener("click", (event) => {
    const node = nodeAt(event);
    put({ selected: node === state.selected ? null : node, hovered: null });
  });
  drawing.addEventListener("keydown", (event) => {
    const ids = [...drawing.querySelectorAll("[data-node]")].map((each) => each.dataset.node);
    const at = ids.indexOf(state.selected);
    const goal = {
      ArrowRight: at + 1,
      ArrowDown: at + 1,
      ArrowLeft: at < 0 ? ids.length - 1 : at - 1,
      ArrowUp: at < 0 ? ids.length - 1 : at - 1,
      Home: 0,
      End: ids.length - 1,
    }[event.key];
    if (event.key === "Escape") put({ selected: null });
    else if (goal !== undefined && ids.length > 0)
      put({ selected: ids[(goal + ids.length) % ids.length] });
    else return;
    event.preventDefault();
  });
}
