// Colours of nodes: one for each node while there are few, and otherwise one for each fault zone.
//
// A node keeps its colour for as long as it lives.

const COLOURS = 8;
const ofNodes = new Map();

/** `{by, of, zones}`: what colours stand for, and the class of each node. */
export function colouring(nodes) {
  const zones = [...new Set(nodes.map((node) => node.zone))].sort();
  const living = new Set(nodes.map((node) => node.id));
  for (const node of [...ofNodes.keys()]) if (!living.has(node)) ofNodes.delete(node);
  if (nodes.length > COLOURS) {
    const place = new Map(zones.map((zone, at) => [zone, at % COLOURS]));
    const of = new Map(nodes.map((node) => [node.id, `c${place.get(node.zone)}`]));
    return { by: "zone", of, zones };
  }
  const taken = new Set(ofNodes.values());
  for (const { id } of nodes) {
    if (ofNodes.has(id)) continue;
    const free = [...Array(COLOURS).keys()].find((colour) => !taken.has(colour)) ?? 0;
    taken.add(free);
    ofNodes.set(id, free);
  }
  return {
    by: "node",
    of: new Map([...ofNodes].map(([node, colour]) => [node, `c${colour}`])),
    zones,
  };
}
