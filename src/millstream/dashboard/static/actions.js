// Changes: a button for each, and a dialog that says what will happen before it does.

import { post } from "./api.js";
import { attribute, calmly, h, text } from "./dom.js";
import { bytes, shortId, whole } from "./format.js";
import { on, state } from "./store.js";

const SHOWN_TRANSFERS = 8;
const ACTIONS = [
  {
    name: "Scale",
    path: "/scale",
    input: () =>
      h(
        "label",
        { class: "field" },
        "Active nodes ",
        h("input", {
          name: "nodes",
          type: "number",
          min: 1,
          max: 65536,
          required: true,
          value: state.run.target,
        }),
      ),
    body: (form) => ({ nodes: form.elements.nodes.valueAsNumber }),
    confirm: (form) => `Scale to ${form.elements.nodes.value} nodes`,
  },
  { name: "Rebalance", path: "/rebalance", body: () => ({}), confirm: () => "Rebalance" },
  {
    name: "Drain",
    path: "/drain",
    input: () =>
      h(
        "label",
        { class: "field" },
        "Node ",
        h(
          "select",
          { name: "node" },
          ...state.nodes.map((node) =>
            h(
              "option",
              { value: node.id, selected: node.id === state.selected },
              `${shortId(node.id)}${node.zone ? `, ${node.zone}` : ""}, ${whole(node.slots)} slots`,
            ),
          ),
        ),
      ),
    body: (form) => ({ node: form.elements.node.value }),
    confirm: (form) => `Drain ${shortId(form.elements.node.value)}`,
  },
  {
    name: "Stop",
    path: "/stop",
    body: () => ({}),
    confirm: () => "Stop the workflow",
    isFinal: true,
  },
];

export function actions(place, dialog, announcer) {
  const buttons = ACTIONS.map((action) =>
    h(
      "button",
      {
        type: "button",
        class: action.isFinal ? "final" : null,
        onclick: () => open(dialog, action, announcer),
      },
      action.name,
    ),
  );
  place.append(...buttons);
  on(["session", "run"], ({ session, run }) => {
    const why =
      session?.right !== "operator"
        ? "Your link allows looking only"
        : run.phase !== "running"
          ? `The run has ${run.phase}`
          : null;
    for (const button of buttons) {
      attribute(button, "disabled", why !== null);
      attribute(button, "title", why);
    }
  });
}

function open(dialog, action, announcer) {
  const preview = h("div", { class: "preview", role: "status" }, "Working out what will happen…");
  const wrong = h("p", { class: "wrong", role: "alert" });
  const confirm = h("button", { type: "submit", class: action.isFinal ? "main final" : "main" });
  const form = h(
    "form",
    {},
    h("h2", { id: "dialog-title" }, action.name),
    action.input?.() ?? null,
    preview,
    wrong,
    h(
      "p",
      { class: "choices" },
      h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      confirm,
    ),
  );
  let asked = 0;
  const predict = async () => {
    asked += 1;
    const mine = asked;
    text(confirm, action.confirm(form));
    confirm.disabled = true;
    if (!form.checkValidity()) return text(preview, "Choose at least one node.");
    try {
      const change = await post(action.path, { ...action.body(form), dry_run: true });
      if (mine !== asked) return null;
      preview.replaceChildren(...described(change.preview));
      text(wrong, "");
      confirm.disabled = false;
    } catch (problem) {
      if (mine !== asked) return null;
      preview.replaceChildren();
      text(wrong, problem.message);
    }
    return null;
  };
  form.addEventListener("input", calmly(250, predict));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    try {
      const change = await post(action.path, { ...action.body(form), dry_run: false });
      dialog.close();
      text(announcer, `Accepted: ${change.preview.text}`);
    } catch (problem) {
      text(wrong, problem.message);
      confirm.disabled = false;
    }
  });
  dialog.replaceChildren(form);
  dialog.showModal();
  predict();
}

function described({ text: words, transfers, slots }) {
  const largest = [...transfers].sort((one, other) => other.slots - one.slots);
  const rows = largest
    .slice(0, SHOWN_TRANSFERS)
    .map((each) =>
      h(
        "tr",
        {},
        h("td", {}, shortId(each.source)),
        h("td", {}, shortId(each.to)),
        h("td", {}, whole(each.slots)),
        h("td", {}, bytes(each.bytes)),
      ),
    );
  const rest = transfers.length - rows.length;
  const table = h(
    "table",
    {},
    h("caption", { class: "unseen" }, "Slots that change owner"),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ...["From", "To", "Slots", "State"].map((name) => h("th", { scope: "col" }, name)),
      ),
    ),
    h("tbody", {}, ...rows),
  );
  return [
    h("p", {}, words),
    slots > 0 && rows.length > 0 ? table : null,
    rest > 0 ? h("p", {}, `and ${whole(rest)} more`) : null,
  ].filter(Boolean);
}
