// Lists the sources with their token counts; pressing one highlights its tokens.

import { SOURCES } from "./sources.js";

export class Legend {
  constructor(list, about, onHighlight) {
    this.counts = new Map();
    this.about = about;
    this.onHighlight = onHighlight;
    for (const [source, said] of SOURCES) list.append(this.#entry(source, said));
  }

  show(bySource) {
    for (const [source, count] of this.counts) count.textContent = bySource.get(source) ?? 0;
  }

  #entry(source, { letter, name, about }) {
    const button = document.createElement("button");
    button.type = "button";
    button.title = about;
    button.setAttribute("aria-pressed", "false");
    const sample = document.createElement("span");
    sample.className = "token";
    sample.dataset.source = source;
    sample.textContent = letter;
    const count = document.createElement("span");
    count.className = "count";
    count.textContent = "0";
    this.counts.set(source, count);
    button.append(sample, ` ${name} `, count);
    button.addEventListener("click", () => this.#press(button, source));
    const tell = () => (this.about.textContent = `${name}: ${about}.`);
    button.addEventListener("focus", tell);
    button.addEventListener("pointerenter", tell);
    const entry = document.createElement("li");
    entry.append(button);
    return entry;
  }

  #press(button, source) {
    const pressed = button.getAttribute("aria-pressed") !== "true";
    for (const other of button.closest("ul").querySelectorAll("button")) {
      other.setAttribute("aria-pressed", String(other === button && pressed));
    }
    this.onHighlight(pressed ? source : null);
  }
}
