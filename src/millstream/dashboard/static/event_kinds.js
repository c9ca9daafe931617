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
  move: "move",
  lost: "failure",
  "copy-failed": "failure",
  checkpoint: "checkpoint",
};

/** Events, oldest first, each with its lane: a node that joins after a loss is the recovery from it. */
export function inLanes(events) {
  let missing = 0;
  return events.map((event) => {
    let lane = LANE_OF[event.kind] ?? "scale";
    if (event.kind === "lost") missing += 1;
    if (event.kind === "join" && missing > 0) {
      missing -= 1;
      lane = "recovery";
    }
    return { ...event, lane };
  });
}

export const isMarked = (event) => ["scale", "lost"].includes(event.kind);
