// The HTTP API of the run: requests, errors, and the live stream.

const PREFIX = "/api/v1";
const RETRY = 2000;

/** Why a request failed; `message` says what to do about it. */
export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** The JSON that a GET answers. */
export function get(path, query = {}) {
  const search = new URLSearchParams(query).toString();
  return request(search ? `${path}?${search}` : path);
}

/** The JSON that a POST answers. */
export function post(path, body) {
  return request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(PREFIX + path, options);
  } catch {
    throw new Problem(0, "The run does not answer.");
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new Problem(response.status, answer?.detail ?? response.statusText);
  return answer;
}

/**
 * Follow the live stream for ever: `onChange` gets changes of the snapshot, `onEvent` events,
 * `onState` "live", "broken" (it is opened again), or "refused" (the token is not valid any more).
 */
export function follow(since, { onChange, onEvent, onState }) {
  let newest = since;
  const open = () => {
    const stream = new EventSource(`${PREFIX}/stream?since=${newest}`);
    stream.addEventListener("open", () => onState("live"));
    stream.addEventListener("snapshot", (message) => onChange(JSON.parse(message.data)));
    stream.addEventListener("event", (message) => {
      const event = JSON.parse(message.data);
      if (event.number <= newest) return;
      newest = event.number;
      onEvent(event);
    });
    stream.addEventListener("error", async () => {
      stream.close();
      onState((await isRefused()) ? "refused" : "broken");
      setTimeout(open, RETRY);
    });
  };
  open();
}

async function isRefused() {
  try {
    await get("/session");
    return false;
  } catch (problem) {
    return problem.status === 401;
  }
}
