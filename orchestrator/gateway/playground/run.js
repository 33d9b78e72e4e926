// One generation as the page sees it: its tokens, rounds and current figures.

export class Run {
  constructor() {
    this.tokens = [];
    this.rounds = [];
    this.finishReason = null;
    this.drafted = 0;
    this.accepted = 0;
    this.bySource = new Map();
    this.metrics = null;
    this.firstAt = 0;
    this.lastAt = 0;
  }

  // Adds a chunk and returns its round, or null if it has none. Round 0 is the prefill: it has a
  // token and no draft.
  take(chunk) {
    this.metrics = chunk.metrics ?? this.metrics;
    const choice = chunk.choices[0];
    if (!choice) return null;
    this.finishReason = choice.finish_reason ?? this.finishReason;
    const { tokens, draft, accepted_nodes: acceptedNodes, draft_end: end } = choice.trace;
    const before = this.tokens.at(-1)?.text ?? "";
    const number = this.rounds.length;
    const accepted = acceptedNodes.slice(0, tokens.length); // nodes after the end of the text are dropped
    const round = { number, tokens, draft, accepted, end, before };
    this.rounds.push(round);
    this.tokens.push(...tokens);
    this.drafted += draft.length;
    this.accepted += accepted.length;
    for (const { source } of tokens) this.bySource.set(source, (this.bySource.get(source) ?? 0) + 1);
    this.lastAt = performance.now();
    if (!number) this.firstAt = this.lastAt;
    return round;
  }

  // Tokens per second after the first token: measured by the page, and at the end by the server.
  get speed() {
    if (this.metrics) return this.metrics.timings.tokens_per_second;
    const seconds = (this.lastAt - this.firstAt) / 1000;
    return seconds > 0 ? this.#decoded / seconds : 0;
  }

  get tokensPerRound() {
    const rounds = this.rounds.length - 1;
    return rounds > 0 ? this.#decoded / rounds : 0;
  }

  get acceptance() {
    return this.drafted ? this.accepted / this.drafted : 0;
  }

  // Rounds that wanted the drafter but ran without it.
  get fallbacks() {
    return this.metrics?.speculative_decoding.fallback_rounds ?? 0;
  }

  // Number of tokens from rounds, without the prefill's token.
  get #decoded() {
    return this.tokens.length - (this.rounds[0]?.tokens.length ?? 0);
  }
}

// Index of the first token in which two runs differ; -1 if all are equal.
export function firstDifference(one, other) {
  const longest = Math.max(one.tokens.length, other.tokens.length);
  for (let at = 0; at < longest; at += 1) {
    if (one.tokens[at]?.token_id !== other.tokens[at]?.token_id) return at;
  }
  return -1;
}
