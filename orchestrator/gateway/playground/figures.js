// Shows the figures of a run, and its speed compared with plain decoding.

import { firstDifference } from "./run.js";

const byId = (id) => document.getElementById(id);

export function oneDecimal(number) {
  return number.toFixed(1);
}

export class Figures {
  // Tokens per second of the last plain run; later runs are compared with it.
  plainSpeed = 0;

  show(run) {
    byId("speed").textContent = run.speed ? oneDecimal(run.speed) : "–";
    byId("ratio").textContent = this.#ratio(run.speed);
    byId("per-round").textContent = run.tokensPerRound ? run.tokensPerRound.toFixed(2) : "–";
    byId("acceptance").textContent = run.drafted ? `${Math.round(run.acceptance * 100)} %` : "–";
    byId("count").textContent = run.tokens.length;
  }

  #ratio(speed) {
    return this.plainSpeed && speed ? `${(speed / this.plainSpeed).toFixed(2)}×` : "–";
  }
}

export class Comparison {
  open(strategy) {
    byId("comparison").hidden = byId("plain-figure").hidden = false;
    byId("drafted-name").textContent = strategy;
    byId("answer-name").textContent = `${strategy}: tokens, marked by source`;
    byId("answer-name").classList.remove("sr-only");
    byId("verdict").textContent = "";
    this.speeds(0, 0);
  }

  close() {
    byId("comparison").hidden = byId("plain-figure").hidden = true;
    byId("answer-name").classList.add("sr-only");
  }

  // Sets both bars, in tokens per second.
  speeds(drafted, plain) {
    const most = Math.max(drafted, plain);
    for (const [name, speed] of [["drafted", drafted], ["plain", plain]]) {
      byId(`${name}-bar`).style.inlineSize = most ? `${(70 * speed) / most}%` : "0";
      byId(`${name}-speed`).textContent = speed ? `${oneDecimal(speed)} tokens/s` : "–";
    }
  }

  judge(drafted, plain) {
    const at = firstDifference(drafted, plain);
    const same = at < 0;
    const verdict = byId("verdict");
    verdict.dataset.same = same;
    verdict.textContent = same
      ? `✓ Identical: all ${plain.tokens.length} tokens`
      : `✗ Different from token ${at + 1} on: a near-tie of rounded numbers, or a fault`;
  }
}
