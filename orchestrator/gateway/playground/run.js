// One generation as the page knows it: its tokens, its rounds, and figures while it goes on.

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

  // Takes in a chunk; returns the round that it tells of. The first one is the prefill's: it has
  // a token and no draft, and counts as round 0.
  take(chunk) {
    this.metrics = chunk.metrics ?? this.metrics;
    const choice = chunk.choices[0];
    if (!choice) return null;
    this.finishReason = choice.finish_reason ?? this.finishReason;
    const { tokens, draft, accepted_nodes: acceptedNodes, draft_end: end } = choice.trace;
    const before = this.tokens.at(-1)?.text ?? "";
    const number = this.rounds.length;
    const accepted = acceptedNodes.slice(0, tokens.length); // what came after the end is dropped
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

  // Tokens a second after the first: as the page sees it, at the end as the server measured it.
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

  // Rounds that wanted the drafter and had to do without.
  get fallbacks() {
    return this.metrics?.speculative_decoding.fallback_rounds ?? 0;
  }

  // Tokens that rounds brought; the first came with the prefill.
  get #decoded() {
    return this.tokens.length - (this.rounds[0]?.tokens.length ?? 0);
  }
}

// The first place in which two runs have different tokens; -1 where they are the same.
export function firstDifference(one, other) {
  const longest = Math.max(one.tokens.length, other.tokens.length);
  for (let at = 0; at < longest; at += 1) {
    if (one.tokens[at]?.token_id !== other.tokens[at]?.token_id) return at;
  }
  return -1;
}
