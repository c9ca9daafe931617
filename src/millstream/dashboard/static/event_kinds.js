// Kinds of events: their lane of the timeline, and whether charts mark them.

export const LANES = [
  ["decision", "Decision"],
  ["scale", "Scale"],
  ["move", "Move"],
  ["failure", "Failure"],
  ["recovery", "Recovery"],
  ["checkpoint", "Checkpoint"],
];

const LANE_OF = {
  decision: "decision",
  outcome: "decision",
  refused: "decision",
  "policy-failed": "failure",
  scale: "scale",
  drain: "scale",
  leave: "scale",
  join: "recovery",
  move: "move",
  lost: "failure",
  "copy-failed": "failure",
  checkpoint: "checkpoint",
};

/** The lane of an event; kinds that are not known here are shown by their last part. */
export function laneOf(event) {
  return LANE_OF[event.kind] ?? (event.kind.includes("fail") || event.kind.includes("lost") ? "failure" : "scale");
}

export const isMarked = (event) => ["scale", "drain", "lost"].includes(event.kind);
