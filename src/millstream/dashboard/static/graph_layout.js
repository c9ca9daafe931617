// Layout of the workflow: layers by distance from the sources, each ordered to keep edges short.

/** Vertices with `layer` and `row` (and `rows` in all), in layers from sources to sinks. */
export function layout({ vertices, edges }) {
  const inputs = new Map(vertices.map((vertex) => [vertex.id, []]));
  const outputs = new Map(vertices.map((vertex) => [vertex.id, []]));
  for (const { source, target } of edges) {
    inputs.get(target).push(source);
    outputs.get(source).push(target);
  }
  const layer = new Map();
  // Every vertex comes after those that it reads.
  for (const { id } of vertices)
    layer.set(id, Math.max(-1, ...inputs.get(id).map((input) => layer.get(input))) + 1);
  const layers = Array.from({ length: Math.max(...layer.values()) + 1 }, () => []);
  for (const { id } of vertices) layers[layer.get(id)].push(id);

  const row = new Map();
  const place = () => {
    for (const ids of layers) ids.forEach((id, at) => row.set(id, at - (ids.length - 1) / 2));
  };
  place();
  for (let sweep = 0; sweep < 6; sweep += 1) {
    const [near, order] = sweep % 2 === 0 ? [inputs, layers] : [outputs, [...layers].reverse()];
    for (const ids of order) {
      const pull = (id) => mean(near.get(id).map((other) => row.get(other))) ?? row.get(id);
      const pulls = new Map(ids.map((id) => [id, pull(id)]));
      ids.sort((one, other) => pulls.get(one) - pulls.get(other));
      place();
    }
  }
  return {
    layers: layers.length,
    rows: Math.max(...layers.map((ids) => ids.length)),
    places: new Map(vertices.map(({ id }) => [id, { layer: layer.get(id), row: row.get(id) }])),
  };
}

const mean = (values) =>
  values.length === 0 ? null : values.reduce((sum, each) => sum + each, 0) / values.length;
