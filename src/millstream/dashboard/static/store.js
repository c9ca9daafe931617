// What the page knows, and who wants to know when a part of it changes.
//
// Listeners are called once per frame, with the whole state, and only if one of their parts has
// changed since. While the page is hidden nothing is drawn.

const known = {
  session: null,
  connection: "opening",
  selected: null,
  hovered: null,
  range: 900,
  cursor: null,
  history: { times: [], series: {} },
  events: [],
};
const listeners = [];
const changed = new Set();
let isPlanned = false;

/** The parts, by name: those of the snapshot, and those of the page. */
export const state = known;

/** Call `listener` with the state now, if all parts are known, and whenever one changes. */
export function on(parts, listener) {
  listeners.push({ parts, listener });
  if (parts.every((part) => known[part] !== undefined)) listener(known);
}

/** Replace parts. */
export function put(parts) {
  for (const [name, value] of Object.entries(parts)) {
    if (known[name] === value) continue;
    known[name] = value;
    changed.add(name);
  }
  if (changed.size > 0 && !isPlanned) {
    isPlanned = true;
    requestAnimationFrame(tell);
  }
}

function tell() {
  isPlanned = false;
  const parts = new Set(changed);
  changed.clear();
  for (const each of listeners) {
    const isKnown = each.parts.every((part) => known[part] !== undefined);
    if (isKnown && each.parts.some((part) => parts.has(part))) each.listener(known);
  }
}
