// Moves on the ring: slots that are copied to their next owner, and slots that have just changed owner.

import { attribute, isStill, keyed, s } from "./dom.js";
import { along, angle, band, centre, chord } from "./geometry.js";

const MOST_CHORDS = 48;
const FLIGHT = 1400;

export class Moves {
  constructor(radius, own) {
    this.radius = radius;
    this.own = own;
    this.chords = s("g", { class: "chords" });
    this.parts = s("g", { class: "parts" });
    this.flights = s("g", { class: "flights" });
    this.flying = [];
  }

  /** Draw moves that wait for their copies: a chord for each pair, and how much is in sync. */
  pending(pairs, shown, slots, colours) {
    const middles = new Map(shown.map((node) => [node.id, node.middle]));
    const places = newcomers(pairs, middles);
    const drawn = pairs.slice(0, MOST_CHORDS);
    keyed(
      this.chords,
      drawn,
      (pair) => pair.key,
      () => s("path"),
      (path, pair) => {
        const [from, to] = this.ends(pair, middles, places);
        attribute(path, "class", colours.of.get(pair.to));
        attribute(path, "d", chord(this.radius, angle(from, slots), angle(to, slots)).path);
      },
    );
    keyed(
      this.parts,
      pairs,
      (pair) => pair.key,
      () => s("path"),
      (path, pair) => {
        attribute(path, "class", colours.of.get(pair.to));
        attribute(path, "d", pair.arcs.map((move) => this.copied(move, slots)).join(""));
      },
    );
  }

  copied({ start, in_sync: inSync }, slots) {
    const [inner, outer] = this.own;
    return inSync === 0 ? "" : band(start, start + inSync, slots, inner + 2, outer - 2);
  }

  ends(pair, middles, places) {
    const moving = centre(pair.arcs);
    const to = middles.get(pair.to) ?? places.get(pair.to);
    return to === moving ? [middles.get(pair.source) ?? moving, moving] : [moving, to];
  }

  /** Show slots that changed owner: something flies from the old owner to the new one. */
  flown(pairs, slots) {
    if (isStill() || document.hidden) return;
    const places = newcomers(pairs, new Map());
    const began = performance.now();
    for (const pair of pairs.slice(0, MOST_CHORDS)) {
      const from = centre(pair.arcs);
      const goal = places.get(pair.to);
      const curve = chord(
        this.radius,
        angle(from, slots),
        angle(goal === from ? from + slots / 24 : goal, slots),
      );
      const arcs = s("path", {
        class: "landed",
        d: pair.arcs.map((arc) => band(arc.start, arc.stop, slots, ...this.own)).join(""),
      });
      const dot = s("circle", { r: Math.min(7, 2.5 + pair.slots / 100) });
      this.flights.append(arcs, dot);
      this.flying.push({ curve, dot, arcs, began });
    }
    if (this.flying.length > 0) requestAnimationFrame((now) => this.fly(now));
  }

  fly(now) {
    this.flying = this.flying.filter(({ curve, dot, arcs, began }) => {
      const share = Math.min(1, Math.max(0, (now - began) / FLIGHT));
      if (share >= 1) {
        dot.remove();
        arcs.remove();
        return false;
      }
      const [x, y] = along(curve, share * share * (3 - 2 * share));
      dot.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
      return true;
    });
    if (this.flying.length > 0) requestAnimationFrame((later) => this.fly(later));
  }

  /** The chords from a node to those that hold copies of its slots. */
  backupLines(node, shown, slots) {
    return shown
      .filter(
        (other) => node.backups.has(other.id) && other.middle !== null && node.middle !== null,
      )
      .map((other) => ({
        key: other.id,
        path: chord(this.radius, angle(node.middle, slots), angle(other.middle, slots)).path,
      }));
  }
}

/** Where nodes without slots will be: the middle of the most that they get. */
function newcomers(pairs, middles) {
  const found = new Map();
  for (const pair of pairs) {
    if ((middles.get(pair.to) ?? null) !== null || found.has(pair.to)) continue;
    found.set(
      pair.to,
      centre(pairs.filter((each) => each.to === pair.to).flatMap((each) => each.arcs)),
    );
  }
  return found;
}
