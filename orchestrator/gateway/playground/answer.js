// Shows an answer as tokens, each marked by its source and grouped by round.

import { shown, sourceOf } from "./sources.js";

const STEPS = { ArrowLeft: -1, ArrowRight: 1 };
const NEAR_PX = 24;

export class Answer {
  // Calls `onChosen(description, round)` when the reader chooses a token; `round` is a number.
  constructor(element, onChosen = () => {}) {
    this.element = element;
    this.onChosen = onChosen;
    this.fresh = document.createDocumentFragment(); // rounds that are not on the page yet
    this.#forget();
    element.addEventListener("keydown", (event) => this.#key(event));
    element.addEventListener("click", (event) => {
      const span = event.target.closest(".token");
      if (span) this.#choose(this.tokens.indexOf(span));
    });
  }

  clear() {
    this.element.replaceChildren();
    this.fresh.replaceChildren();
    this.#forget();
    this.element.classList.add("writing");
  }

  // No more rounds will come.
  close() {
    this.show();
    this.element.classList.remove("writing");
  }

  // Adds a round; `show` puts it on the page.
  add(round) {
    const group = document.createElement("span");
    group.className = "round";
    group.dataset.round = round.number;
    const tokens = round.tokens.map((token) => tokenSpan(token, round.number));
    group.append(...tokens);
    this.groups[round.number] = group;
    this.tokens.push(...tokens);
    this.fresh.append(group);
  }

  // Puts all new rounds on the page at once: reading the box's scroll height lays out all of it.
  show() {
    if (!this.fresh.hasChildNodes()) return;
    const box = this.element;
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_PX;
    box.append(this.fresh); // this empties the fragment
    if (atEnd) box.scrollTop = box.scrollHeight; // for readers who have scrolled back, nothing moves
  }

  markRound(number) {
    this.current?.classList.remove("current");
    this.current = this.groups[number];
    this.current?.classList.add("current");
  }

  highlight(source) {
    if (source) this.element.dataset.highlight = source;
    else delete this.element.dataset.highlight;
  }

  #forget() {
    this.groups = []; // by round number
    this.tokens = [];
    this.current = null; // the marked group
    this.chosen = -1; // index of the token that the reader has chosen
  }

  #key(event) {
    const last = this.tokens.length - 1;
    if (last < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    let at = this.chosen;
    if (event.key in STEPS) at = at < 0 ? 0 : at + STEPS[event.key];
    else if (event.key === "Home") at = 0;
    else if (event.key === "End") at = last;
    else return;
    event.preventDefault();
    this.show(); // only what is on the page can be scrolled to
    this.#choose(Math.min(Math.max(at, 0), last));
  }

  #choose(at) {
    this.tokens[this.chosen]?.classList.remove("chosen");
    this.chosen = at;
    const span = this.tokens[at];
    span.classList.add("chosen");
    span.scrollIntoView({ block: "nearest" });
    this.onChosen(span.title, Number(span.parentElement.dataset.round));
  }
}

function tokenSpan(token, round) {
  const span = document.createElement("span");
  span.className = "token";
  span.dataset.source = token.source;
  span.dataset.id = token.token_id;
  const { name, about } = sourceOf(token.source);
  const when = round ? `round ${round}` : "prefill";
  span.title = `“${shown(token.text, 40)}” from ${name}: ${about} (${when}, token ${token.token_id})`;
  span.textContent = token.text;
  return span;
}
