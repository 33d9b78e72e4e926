// The page: sends a request and shows its rounds as they arrive.

import { Answer } from "./answer.js";
import { completion, options, Refusal } from "./api.js";
import { Comparison, Figures, oneDecimal } from "./figures.js";
import { Legend } from "./legend.js";
import { RequestForm } from "./request.js";
import { Run } from "./run.js";
import { TreePicture } from "./tree.js";

const LOOK_AGAIN_MS = 2000;
const PLAIN = "autoregressive";
const ENDS = new Map([["length", "at the limit of tokens"], ["stop", "where the text ends"]]);

const byId = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.request = new RequestForm(byId("request"));
    this.answer = new Answer(byId("answer"), (about, round) => this.#lookAt(about, round));
    this.plain = new Answer(byId("plain"));
    this.legend = new Legend(byId("legend"), byId("about-token"), (source) => {
      this.answer.highlight(source);
    });
    this.tree = new TreePicture(byId("tree"), byId("about-tree"));
    this.figures = new Figures();
    this.comparison = new Comparison();
    this.slider = byId("round");
    this.shownRun = null;
    this.writing = null; // the run that receives tokens; a comparison has two runs
    this.stopping = null;
    this.#listen();
  }

  // Asks the server what it offers, until it answers.
  async meet() {
    for (;;) {
      try {
        const offer = await options(this.request.key);
        this.request.offer(offer);
        byId("models").textContent = models(offer);
        return;
      } catch (error) {
        byId("models").textContent = error.message;
        await (error.needsKey ? this.request.anotherKey() : pause(LOOK_AGAIN_MS));
      }
    }
  }

  // Runs the request, and if `compared` repeats it with plain decoding afterwards: at the same time,
  // the two would slow each other down.
  async run({ compared }) {
    if (this.stopping) return;
    byId("error").hidden = true;
    const body = this.request.body();
    if (!body) return;
    this.#begin(compared);
    try {
      const drafted = await this.#stream(body, this.answer, (run) => this.#showDrafted(run));
      if (compared) await this.#comparePlain(body, drafted);
      this.#say(ended(drafted, body.seed));
    } catch (error) {
      this.#fail(error);
    } finally {
      this.#end();
    }
  }

  stop() {
    this.stopping?.abort();
  }

  #begin(compared) {
    this.stopping = new AbortController();
    this.request.running(true);
    this.#showEmpty(new Run());
    if (compared) this.comparison.open(this.request.strategyName);
    else this.comparison.close();
    for (const answer of [this.answer, this.plain]) answer.clear();
    this.#say("Writing …");
  }

  #showEmpty(run) {
    this.shownRun = run;
    this.following = true;
    this.slider.disabled = true;
    this.#nameRound("–");
    this.tree.clear();
    this.figures.show(run);
    this.legend.show(run.bySource);
  }

  #end() {
    this.stopping = null;
    for (const answer of [this.answer, this.plain]) answer.close();
    this.request.running(false);
  }

  async #stream(body, answer, show) {
    const run = new Run();
    this.writing = run;
    const shown = new OncePerFrame(() => {
      answer.show();
      show(run);
    });
    try {
      for await (const chunk of completion(body, this.request.key, this.stopping.signal)) {
        const round = run.take(chunk);
        if (round) answer.add(round);
        shown.soon();
      }
    } finally {
      shown.now(); // by the next frame, another run may have begun
      answer.close();
    }
    return run;
  }

  async #comparePlain(body, drafted) {
    this.comparison.speeds(drafted.speed, 0);
    this.#say("The same by plain decoding …");
    const again = { ...body, speculative: { ...body.speculative, strategy: PLAIN } };
    const plain = await this.#stream(again, this.plain, (run) => {
      this.#measurePlain(drafted, run);
    });
    this.comparison.judge(drafted, plain);
  }

  #measurePlain(drafted, plain) {
    this.figures.plainSpeed = plain.speed;
    this.figures.show(drafted);
    this.comparison.speeds(drafted.speed, plain.speed);
  }

  #showDrafted(run) {
    this.shownRun = run;
    this.figures.show(run);
    this.comparison.speeds(run.speed, 0);
    this.legend.show(run.bySource);
    this.slider.max = run.rounds.length - 1;
    this.slider.disabled = false;
    if (this.following) this.#showRound(run.rounds.length - 1);
  }

  #showRound(number) {
    this.slider.value = number;
    const last = this.shownRun.rounds.length - 1;
    this.#nameRound(number ? `${number} of ${last}` : "prefill");
    this.tree.draw(this.shownRun.rounds[number]);
    this.answer.markRound(number);
  }

  #nameRound(name) {
    byId("round-name").textContent = name;
    this.slider.setAttribute("aria-valuetext", name);
  }

  #lookAt(about, round) {
    byId("about-token").textContent = about;
    this.following = false;
    this.#showRound(round);
  }

  #fail(error) {
    if (error.name === "AbortError") {
      this.#say(`Stopped after ${this.writing.tokens.length} tokens`);
      return;
    }
    if (!(error instanceof Refusal)) console.error(error);
    byId("error").textContent = error.message;
    byId("error").hidden = false;
    this.#say("Failed");
    if (!this.request.blame(error)) byId("error").scrollIntoView({ block: "nearest" });
  }

  #say(words) {
    byId("status").textContent = words;
  }

  #listen() {
    byId("request").addEventListener("submit", (event) => {
      event.preventDefault();
      this.run({ compared: false });
    });
    byId("compare").addEventListener("click", () => this.run({ compared: true }));
    byId("stop").addEventListener("click", () => this.stop());
    this.slider.addEventListener("input", () => {
      this.following = this.slider.value === this.slider.max;
      this.#showRound(Number(this.slider.value));
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.stop();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.run({ compared: false });
      }
    });
  }
}

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

// Shows at most once per frame: rounds may arrive faster than the screen is drawn.
class OncePerFrame {
  frame = 0; // id of the requested frame; 0 if everything is shown

  constructor(show) {
    this.show = show;
  }

  soon() {
    this.frame ||= requestAnimationFrame(() => this.now());
  }

  now() {
    if (!this.frame) return;
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.show();
  }
}

function models({ model, draft_model: draft, version }) {
  return `target ${model}, ${draft ? `draft ${draft}` : "no drafter"}, version ${version}`;
}

function ended(run, seed) {
  const why = ENDS.get(run.finishReason) ?? run.finishReason;
  const said = [counted(run.tokens.length, "token")];
  if (run.speed) said.push(`${oneDecimal(run.speed)} a second`); // a single token has no speed
  said.push(`seed ${seed}`);
  if (run.fallbacks) said.push(`${counted(run.fallbacks, "round")} without the drafter`);
  return `Ended ${why}: ${said.join(", ")}`;
}

function counted(number, what) {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}

new Page().meet();
