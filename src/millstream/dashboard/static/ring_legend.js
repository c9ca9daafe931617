// The legend of the ring: what its tracks, colours and marks stand for.

import { attribute, h, keyed, text } from "./dom.js";
import { shortId, whole } from "./format.js";

/** Draw the legend; colours stand for nodes or for fault zones. */
export function legend(place, ring, members, colours) {
  if (place.firstChild === null) {
    place.append(
      h("p", {}, "Outer track: owner. Inner track: copies. Spokes: CPU. Dots: hot keys."),
      h("ul", { "aria-label": "Colours" }),
      h("p", { class: "health" }),
    );
  }
  const [, list, health] = place.children;
  const entries =
    colours.by === "zone"
      ? colours.zones.map((zone) =>
          entry(
            zone || "no zone",
            members.find((node) => node.zone === zone),
            colours,
          ),
        )
      : members.map((node) =>
          entry(`${shortId(node.id)}${node.zone ? ` · ${node.zone}` : ""}`, node, colours),
        );
  attribute(
    list,
    "aria-label",
    colours.by === "zone" ? "Fault zones by colour" : "Nodes by colour",
  );
  keyed(
    list,
    entries,
    (each) => each.key,
    () => h("li"),
    (item, { name, colour }) => {
      attribute(item, "class", colour);
      text(item, name);
    },
  );
  const missing = ring.under_replicated;
  attribute(health, "class", missing > 0 ? "health wanting" : "health");
  text(
    health,
    missing > 0
      ? `${whole(missing)} of ${whole(ring.slots)} slots wait for a copy`
      : `all ${whole(ring.slots)} slots have ${copies(ring.replicas)}`,
  );
}

const copies = (replicas) =>
  ({ 0: "an owner; no copies are held", 1: "a copy" })[replicas] ?? `${replicas} copies`;

const entry = (name, node, colours) => ({
  key: `${name} ${colours.of.get(node.id)}`,
  name,
  colour: colours.of.get(node.id),
});
