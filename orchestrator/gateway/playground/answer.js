// An answer as a row of tokens, each marked by its source, gathered by rounds.

import { shown, sourceOf } from "./sources.js";

const STEPS = { ArrowLeft: -1, ArrowRight: 1 };
const NEAR_PX = 24;

export class Answer {
  // `onChosen` is told of the token that the reader looks at, with its round's number.
  constructor(element, onChosen = () => {}) {
    this.element = element;
    this.onChosen = onChosen;
    this.chosen = null;
    element.addEventListener("keydown", (event) => this.#key(event));
    element.addEventListener("click", (event) => {
      const span = event.target.closest(".token");
      if (span) this.#choose(span);
    });
  }

  clear() {
    this.element.replaceChildren();
    this.chosen = null;
    this.element.classList.add("writing");
  }

  // No more rounds will come.
  close() {
    this.element.classList.remove("writing");
  }

  add(round) {
    const box = this.element;
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_PX;
    const group = document.createElement("span");
    group.className = "round";
    group.dataset.round = round.number;
    group.append(...round.tokens.map((token) => tokenSpan(token, round.number)));
    box.append(group);
    if (atEnd) box.scrollTop = box.scrollHeight; // whoever has scrolled back reads on in peace
  }

  markRound(number) {
    this.element.querySelector(".round.current")?.classList.remove("current");
    this.element.querySelector(`.round[data-round="${number}"]`)?.classList.add("current");
  }

  highlight(source) {
    if (source) this.element.dataset.highlight = source;
    else delete this.element.dataset.highlight;
  }

  #key(event) {
    const spans = [...this.element.querySelectorAll(".token")];
    if (!spans.length || event.ctrlKey || event.metaKey || event.altKey) return;
    let at = spans.indexOf(this.chosen);
    if (event.key in STEPS) at = at < 0 ? 0 : at + STEPS[event.key];
    else if (event.key === "Home") at = 0;
    else if (event.key === "End") at = spans.length - 1;
    else return;
    event.preventDefault();
    this.#choose(spans[Math.min(Math.max(at, 0), spans.length - 1)]);
  }

  #choose(span) {
    this.chosen?.classList.remove("chosen");
    this.chosen = span;
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
