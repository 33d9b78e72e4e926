// The form: what the reader asks for, with a seed in any case, so that it can be asked again.

import { STRATEGIES } from "./sources.js";

const EXAMPLES = new Map([
  ["A function", "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n"],
  ["A class", "class Stack:\n    \"\"\"A last-in, first-out collection.\"\"\"\n\n    def __init__(self):\n"],
  ["Repetition", [
    "class Shape:",
    "    def set_width(self, width):",
    "        if width < 0:",
    "            raise ValueError(\"width must not be negative\")",
    "        self.width = width",
    "",
    "    def set_height(self, height):",
    "        if height < 0:",
    "",
  ].join("\n")],
]);
const SEEDS = 2 ** 32;

export class RequestForm {
  constructor(form) {
    this.form = form;
    this.fields = form.elements;
    this.#offerExamples();
    this.fields.strategy.addEventListener("change", () => this.#tellStrategy());
    this.fields.prompt.value ||= EXAMPLES.get("A function"); // browsers may have kept one's own
    form.addEventListener("input", ({ target }) => target.setCustomValidity(""));
  }

  // Fills in what the server offers.
  offer({ strategies, default_strategy: usual }) {
    const choices = strategies.map((name) => new Option(name, name, name === usual, name === usual));
    this.fields.strategy.replaceChildren(...choices);
    this.#tellStrategy();
  }

  get strategyName() {
    return this.fields.strategy.selectedOptions[0].text;
  }

  get key() {
    return this.fields.key.value.trim();
  }

  // The body of a completion; null where a number is none, which the browser then tells.
  body() {
    for (const field of this.fields) field.setCustomValidity(""); // it may be right by now
    if (!this.form.reportValidity()) return null;
    const { prompt, strategy, temperature, seed } = this.fields;
    return {
      prompt: prompt.value,
      temperature: Number(temperature.value),
      max_tokens: Number(this.fields["max-tokens"].value),
      seed: seed.value === "" ? drawnSeed() : Number(seed.value),
      stream: true,
      speculative: { strategy: strategy.value || undefined, trace: true },
    };
  }

  // Which buttons do something; the focus stays on one that does.
  running(is) {
    const { run, compare, stop } = this.fields;
    const lost = is ? [run, compare] : [stop];
    const moves = lost.includes(document.activeElement);
    run.disabled = compare.disabled = is;
    stop.disabled = !is;
    if (moves) (is ? stop : run).focus({ preventScroll: true });
  }

  // Tells a refusal beside the field that it is about; returns whether it is about one.
  blame({ message, needsKey, param }) {
    if (needsKey) this.form.querySelector("#access").open = true;
    const name = needsKey ? "key" : param?.split(".").at(-1).replace("_", "-");
    const field = this.fields.namedItem(name ?? "");
    field?.setCustomValidity(message);
    field?.reportValidity();
    return field !== null;
  }

  // Waits until the reader has typed one in.
  anotherKey() {
    this.form.querySelector("#access").open = true;
    return new Promise((resolve) => {
      this.fields.key.addEventListener("change", resolve, { once: true });
    });
  }

  #offerExamples() {
    const { example, prompt } = this.fields;
    for (const name of EXAMPLES.keys()) example.append(new Option(name));
    // Arrow keys choose at once: the focus has to stay, and what is replaced must not be lost.
    example.addEventListener("change", () => {
      if (example.value) replaced(prompt, EXAMPLES.get(example.value));
      example.focus();
    });
    prompt.addEventListener("input", () => {
      if (prompt.value !== EXAMPLES.get(example.value)) example.value = "";
    });
  }

  #tellStrategy() {
    const about = STRATEGIES.get(this.fields.strategy.value) ?? "";
    this.form.querySelector("#about-strategy").textContent = about;
  }
}

// Only what is written as if it were typed in can be undone.
function replaced(area, text) {
  area.focus();
  area.select();
  if (!document.execCommand("insertText", false, text)) area.value = text;
}

function drawnSeed() {
  return Math.floor(Math.random() * SEEDS);
}
