// The geometry of the ring: slots to angles, arcs to paths. Slot 0 is at the top, clockwise.

const TURN = 2 * Math.PI;

export const angle = (slot, slots) => (slot / slots) * TURN - TURN / 4;

export function point(radius, at) {
  return [radius * Math.cos(at), radius * Math.sin(at)];
}

const xy = ([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`;

/** A closed band between two radii from one slot to before another; `gap` is left at its end. */
export function band(start, stop, slots, inner, outer, gap = 0) {
  const length = Math.max(((stop - start) / slots) * TURN - gap / outer, 0.6 / outer);
  const from = angle(start, slots);
  const to = from + Math.min(length, TURN - 1e-3);
  const large = to - from > Math.PI ? 1 : 0;
  return (
    `M${xy(point(outer, from))}A${outer} ${outer} 0 ${large} 1 ${xy(point(outer, to))}` +
    `L${xy(point(inner, to))}A${inner} ${inner} 0 ${large} 0 ${xy(point(inner, from))}Z`
  );
}

/** A curve through the inside of the ring, between two angles at a radius. */
export function chord(radius, from, to) {
  const start = point(radius, from);
  const end = point(radius, to);
  // Pulled to the middle, but less so for neighbours, whose chord would be a spike.
  const apart = Math.hypot(end[0] - start[0], end[1] - start[1]) / (2 * radius);
  const pull = 1 - 0.9 * Math.min(1, apart);
  const middle = [((start[0] + end[0]) / 2) * pull, ((start[1] + end[1]) / 2) * pull];
  return { start, middle, end, path: `M${xy(start)}Q${xy(middle)} ${xy(end)}` };
}

/** The point of a chord at a share of its way. */
export function along({ start, middle, end }, share) {
  const rest = 1 - share;
  return [0, 1].map(
    (axis) =>
      rest * rest * start[axis] + 2 * rest * share * middle[axis] + share * share * end[axis],
  );
}

/** Adjacent arcs of one owner as one; arcs are sorted. */
export function joined(arcs) {
  const found = [];
  for (const { start, stop } of arcs) {
    const last = found.at(-1);
    if (last !== undefined && last.stop === start) last.stop = stop;
    else found.push({ start, stop });
  }
  return found;
}

/** The middle of the longest of some arcs, as a slot; null if there are none. */
export function centre(arcs) {
  let best = null;
  for (const arc of arcs) {
    if (best === null || arc.stop - arc.start > best.stop - best.start) best = arc;
  }
  return best === null ? null : (best.start + best.stop) / 2;
}

/** The slots that have another owner than before, `{start, stop, source, to}`; arcs are sorted. */
export function handovers(before, after) {
  const found = [];
  let at = 0;
  for (const arc of after) {
    while (at < before.length && before[at].stop <= arc.start) at += 1;
    for (let each = at; each < before.length && before[each].start < arc.stop; each += 1) {
      const old = before[each];
      if (old.owner === arc.owner) continue;
      found.push({
        start: Math.max(arc.start, old.start),
        stop: Math.min(arc.stop, old.stop),
        source: old.owner,
        to: arc.owner,
      });
    }
  }
  return found;
}

/** Moves between the same two nodes as one, with all their slots, the largest first. */
export function byPair(moves) {
  const pairs = new Map();
  for (const move of moves) {
    const key = `${move.source} ${move.to}`;
    const pair = pairs.get(key) ?? {
      key,
      source: move.source,
      to: move.to,
      slots: 0,
      inSync: 0,
      arcs: [],
    };
    pair.slots += move.stop - move.start;
    pair.inSync += move.in_sync ?? 0;
    pair.arcs.push(move);
    pairs.set(key, pair);
  }
  return [...pairs.values()].sort((one, other) => other.slots - one.slots);
}
