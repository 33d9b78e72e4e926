// Client of the server's API. Addresses are relative to the page's.

const DONE = "[DONE]";
const UNAUTHORIZED = 401;
const KEY = /^[\x21-\x7e]*$/; // some other characters cannot even be sent in a header

// An error from the server or from the connection to it; the message is for the reader.
export class Refusal extends Error {
  constructor(message, { status = 0, param = null } = {}) {
    super(message);
    this.status = status;
    this.param = param; // the field of the request at fault, if it is one field
  }

  get needsKey() {
    return this.status === UNAUTHORIZED;
  }
}

// The server's models, strategies and version. Throws a Refusal.
export async function options(key) {
  const answer = await reached("options", { cache: "no-store", headers: credentials(key) });
  return answer.json();
}

// Yields the chunks of a streamed completion. Throws a Refusal, or an AbortError if `signal` aborts.
export async function* completion(body, key, signal) {
  const headers = { "Content-Type": "application/json", ...credentials(key) };
  const request = { method: "POST", headers, body: JSON.stringify(body), signal };
  const answer = await reached("../v1/completions", request);
  for await (const data of events(answer.body, signal)) {
    if (data === DONE) return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refusal(chunk.error.message);
    yield chunk;
  }
  throw new Refusal("The connection ended before the answer did.");
}

function credentials(key) {
  if (!KEY.test(key)) {
    throw new Refusal("The API key has a character that no key has.", { status: UNAUTHORIZED });
  }
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function reached(address, request) {
  let answer;
  try {
    answer = await fetch(address, request);
  } catch (error) {
    throw lost(error, request.signal);
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

// Browsers report a lost connection as a TypeError.
function lost(error, signal) {
  if (signal?.aborted) return signal.reason;
  return error instanceof TypeError ? new Refusal("The server cannot be reached. Does it still run?") : error;
}

async function refusal(answer) {
  const said = await answer.json().catch(() => null);
  const { message, param } = said?.error ?? {};
  const words = message ?? `The server answered with status ${answer.status}`;
  return new Refusal(words + later(answer), { status: answer.status, param });
}

// A proxy may send a date instead of seconds; dates are not shown.
function later(answer) {
  const seconds = /^\d+$/.exec(answer.headers.get("Retry-After") ?? "");
  return seconds ? `; try again in ${seconds} s` : "";
}

async function* events(stream, signal) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const whole = (held + value).split("\n\n");
      held = whole.pop();
      for (const event of whole) {
        if (event.startsWith(":")) continue; // a comment: a sign of life during a long wait
        yield event.replace(/^data: /, "");
      }
    }
  } catch (error) {
    throw lost(error, signal);
  } finally {
    reader.cancel().catch(() => {}); // the stream may have failed; that error is thrown above
  }
}
