// The sources of tokens. The letter stands for the source where its name does not fit.

export const TARGET = "target";

export const SOURCES = new Map([
  ["draft_model", { letter: "D", name: "draft model", about: "proposed by the small draft model" }],
  ["phrase", { letter: "P", name: "phrase", about: "continued from a phrase of an earlier text" }],
  ["prompt_lookup", { letter: "O", name: "own text", about: "copied from this prompt or answer" }],
  ["lookahead", { letter: "L", name: "lookahead", about: "an n-gram of the lookahead window" }],
  ["recycled", { letter: "R", name: "recycled", about: "a likely successor from an earlier place" }],
  [TARGET, { letter: "T", name: "target model", about: "the target model's own, a round's bonus token" }],
]);

export function sourceOf(name) {
  return SOURCES.get(name) ?? { letter: "?", name, about: "" };
}

const INVISIBLE = new Map([[" ", "␣"], ["\n", "↵"], ["\t", "⇥"], ["\r", "␍"]]);

// A token's text as one short line, with visible white space.
export function shown(text, most = 16) {
  const letters = Array.from(text, (letter) => INVISIBLE.get(letter) ?? letter);
  if (!letters.length) return "∅";
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : letters.join("");
}

export const STRATEGIES = new Map([
  ["autoregressive", "No drafts: plain decoding, the baseline."],
  ["speculative", "A chain from the draft model."],
  ["prompt_lookup", "What followed the same tokens earlier in prompt or answer."],
  ["lookahead", "N-grams from a window that rides along in the target's own passes."],
  ["ouroboros", "Phrases speed the draft model up and lengthen its drafts."],
  ["opt_tree", "The draft model's tree of the greatest expected accepted length."],
  ["cascade", "Draft models in a row, each reviewing what the cheaper ones propose."],
  ["token_recycling", "The target's likeliest successors of a token at an earlier place."],
  ["fused", "One tree of all sources, every node priced by what it costs."],
]);

export const DRAFT_ENDS = new Map([
  ["nodes", "it had as many nodes as were allowed"],
  ["depth", "it was as deep as was allowed"],
  ["draft_cost", "another pass of the draft model would not have paid"],
  ["verify_cost", "further nodes would not have been worth verifying"],
  ["text", "the text ended, or there was nothing left to propose"],
]);
