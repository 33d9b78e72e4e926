// Draws a round's draft tree, and describes it in words for screen readers.

import { DRAFT_ENDS, shown, sourceOf } from "./sources.js";
import { laidOut } from "./tree_layout.js";

const SVG = "http://www.w3.org/2000/svg";
const LETTER_PX = 8;
const LABEL_LETTERS = 12;
const LEAST_WIDTH = 58;
const HEIGHT = 36;
const GAP = { x: 28, y: 10 };
const MARGIN = 8;

export class TreePicture {
  constructor(element, about) {
    this.element = element;
    this.about = about;
    this.empty = about.textContent.trim();
  }

  clear() {
    this.element.replaceChildren();
    this.about.textContent = this.empty;
  }

  draw(round) {
    const nodes = laidOut(round);
    const { left, width, right } = columns(nodes);
    const bottom = Math.max(...nodes.map((node) => node.row)) + 1;
    for (const node of nodes) {
      node.x = left[node.column];
      node.width = width[node.column];
      node.y = MARGIN + node.row * (HEIGHT + GAP.y);
    }
    const words = described(round);
    const size = { width: right + MARGIN, height: 2 * MARGIN + bottom * (HEIGHT + GAP.y) - GAP.y };
    const svg = made("svg", { ...size, viewBox: `0 0 ${size.width} ${size.height}`, role: "img" });
    svg.setAttribute("aria-label", spoken(round));
    svg.append(...nodes.slice(1).map(edge), ...nodes.map(box));
    this.element.replaceChildren(svg);
    this.element.scrollTo(0, 0);
    this.about.textContent = words;
  }
}

function columns(nodes) {
  const width = [];
  for (const node of nodes) {
    const letters = Array.from(shown(node.text, LABEL_LETTERS)).length;
    const own = Math.max(LEAST_WIDTH, letters * LETTER_PX + 20);
    width[node.column] = Math.max(width[node.column] ?? 0, own);
  }
  const left = [];
  let right = MARGIN;
  for (const own of width) {
    left.push(right);
    right += own + GAP.x;
  }
  return { left, width, right: right - GAP.x };
}

function edge(node) {
  const from = { x: node.above.x + node.above.width, y: node.above.y + HEIGHT / 2 };
  const to = { x: node.x, y: node.y + HEIGHT / 2 };
  const middle = (from.x + to.x) / 2;
  const d = `M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`;
  return made("path", { class: `edge ${node.kind}`, d });
}

function box(node) {
  const group = made("g", { class: `node ${node.kind}`, "data-source": node.source });
  group.setAttribute("transform", `translate(${node.x} ${node.y})`);
  const title = made("title");
  title.textContent = detail(node);
  const frame = made("rect", { width: node.width, height: HEIGHT, rx: node.kind === "bonus" ? 18 : 6 });
  const label = made("text", { class: "label", x: node.width / 2, y: 15 });
  label.textContent = shown(node.text, LABEL_LETTERS);
  const under = made("text", { class: "under", x: node.width / 2, y: 29 });
  under.textContent = note(node);
  group.append(title, frame, label, under);
  return group;
}

const NOTES = { root: "last", bonus: "T bonus" };

function note(node) {
  const marks = { accepted: "✓ ", rejected: "" };
  const estimate = () => `${sourceOf(node.source).letter} ${percent(node.estimate)}`;
  return NOTES[node.kind] ?? marks[node.kind] + estimate();
}

function detail(node) {
  const text = `“${shown(node.text, 40)}”`;
  if (node.kind === "root") return `${text}: the last committed token`;
  if (node.kind === "bonus") return `${text}: the target model's own token after what it accepted`;
  const { name } = sourceOf(node.source);
  return `${text} from ${name}, thought to be accepted with ${percent(node.estimate)}: ${node.kind}`;
}

function percent(share) {
  return `${Math.round(share * 100)} %`;
}

function described(round) {
  if (!round.number) return "The prefill: the prompt's own first token, before any draft.";
  if (!round.draft.length) {
    return "No draft in this round: none was asked for, none would have paid, or no drafter answered. One token of the target's own.";
  }
  const came = `${round.accepted.length} of ${round.draft.length} drafted tokens accepted, ${round.tokens.length} committed.`;
  const why = DRAFT_ENDS.get(round.end);
  return why ? `${came} The draft ended because ${why}.` : `${came} The source had no more to propose.`;
}

function spoken(round) {
  const quoted = (tokens) => tokens.map((token) => `“${shown(token.text)}”`).join(" ");
  const accepted = round.tokens.slice(0, round.accepted.length);
  const own = round.tokens.slice(round.accepted.length);
  const parts = [`Draft tree of round ${round.number} with ${round.draft.length} tokens.`];
  if (accepted.length) parts.push(`Accepted: ${quoted(accepted)}.`);
  if (own.length) parts.push(`The target's own: ${quoted(own)}.`);
  return parts.join(" ");
}

function made(name, attributes = {}) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
