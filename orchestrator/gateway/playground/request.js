// The request form. Every request has a seed, so that it can be repeated.

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
    this.fields.prompt.value ||= EXAMPLES.get("A function"); // browsers may have restored the reader's own
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

  // The body of a completion request; null if a field is invalid, which the browser then reports.
  body() {
    for (const field of this.fields) field.setCustomValidity(""); // an earlier error may be corrected
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

  // Enables the buttons that have an effect now; if the focus was on another one, moves it.
  running(is) {
    const { run, compare, stop } = this.fields;
    const lost = is ? [run, compare] : [stop];
    const moves = lost.includes(document.activeElement);
    run.disabled = compare.disabled = is;
    stop.disabled = !is;
    if (moves) (is ? stop : run).focus({ preventScroll: true });
  }

  // Shows a refusal beside the field at fault; returns whether there is such a field.
  blame({ message, needsKey, param }) {
    if (needsKey) this.form.querySelector("#access").open = true;
    const name = needsKey ? "key" : param?.split(".").at(-1).replace("_", "-");
    const field = this.fields.namedItem(name ?? "");
    field?.setCustomValidity(message);
    field?.reportValidity();
    return field !== null;
  }

  // Waits until the reader has entered another key.
  anotherKey() {
    this.form.querySelector("#access").open = true;
    return new Promise((resolve) => {
      this.fields.key.addEventListener("change", resolve, { once: true });
    });
  }

  #offerExamples() {
    const { example, prompt } = this.fields;
    for (const name of EXAMPLES.keys()) example.append(new Option(name));
    // Arrow keys select an example at once, so the focus must stay here, and it must be possible to
    // undo the replacement.
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

// Replaces the text as if it were typed, because browsers undo only such changes.
function replaced(area, text) {
  area.focus();
  area.select();
  if (!document.execCommand("insertText", false, text)) area.value = text;
}

function drawnSeed() {
  return Math.floor(Math.random() * SEEDS);
}
