"""A loaded causal language model with its KV cache; `forward` runs several sessions at once."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from draftloop.cost_line import cost_line
from draftloop.errors import Overloaded, StartupFailure
from draftloop.model_info import (
    CostPoint,
    ModelInfo,
    model_fingerprint,
    vocabulary_fingerprint,
)
from draftloop.processor import processor_id
from draftloop.request import SamplingParameters
from draftloop.runtime import (
    attention_shapes,
    cost_measurement,
    cpu_attention,
    cpu_elementwise,
    cpu_linear,
    cpu_parameters,
    freed_memory,
    prefixes,
    reference,
    rope,
    split,
    tensor_parallel,
)
from draftloop.runtime.cost_curve import CostCurve
from draftloop.runtime.forward import Batch, Forward, lay_out
from draftloop.runtime.grammars import Grammars
from draftloop.runtime.inflate import count_parameters, inflate, parse_size
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.lean import LeanDecoder, is_lean
from draftloop.runtime.loading import (
    ModelOptions,
    device_of,
    load_network,
    processor_name,
    stop_tokens_of,
    threads_of,
    wanted_context,
)
from draftloop.runtime.orders import NO_FOLLOWERS, Lead, Run
from draftloop.runtime.prefixes import Text
from draftloop.runtime.prepared import ChoiceSettings, Pass, Passes, Prepared
from draftloop.runtime.quantization import FORMATS, Format, quantize
from draftloop.runtime.room import Room
from draftloop.runtime.sampling import Sampler
from draftloop.runtime.split import WHOLE, Parts
from draftloop.runtime.step import StepSize, prompt_tokens
from draftloop.tree import ROOT


class LanguageModel:
    """Weights, KV cache and limits. Used from the engine's thread only."""

    def __init__(self, options: ModelOptions) -> None:
        if threads := threads_of(options):
            torch.set_num_threads(threads)
        self.options = options
        self.device = device_of(options)
        self.network = load_network(options, self.device)
        config = self.network.config.get_text_config(decoder=True)
        self.vocabulary_size = int(config.vocab_size)
        requested = wanted_context(options, self.network)
        kept = attention_shapes.observed(self.network, requested - 1)
        self._made_for = rope.fix(self.network)
        if size := parse_size(options.inflate):
            inflate(self.network, size)
        self.parameters = count_parameters(self.network)
        if options.split and self._bits == 4:
            raise StartupFailure(
                "quantization: w4a8 does not go with tensor_parallel_size yet; take int8 or w8a8"
            )
        if self._form and not options.split:  # before `reference`, so that it has them rounded too
            quantize(self.network, self._form)
        expected = reference.compute_reference(self.network, requested)
        parts = self._parts()
        if options.torch_compile and parts is None:
            kind = self.network.config.model_type
            raise StartupFailure(
                f"torch_compile: {kind} runs by transformers' code, not by ours; leave it out"
            )
        # transformers' wrappers around split layers work with its own layers only
        wrapped = options.split and parts is None
        if self._form and options.split:
            self._quantize_parts(wrapped)
        self.stop_token_ids = stop_tokens_of(self.network, options.folder)
        self.grammars = Grammars(options.folder, self.vocabulary_size, self.stop_token_ids)
        on_cpu = self.device.type == "cpu" and not wrapped and not options.torch_compile
        self._own_kernels = on_cpu and cpu_linear.available()
        room = Room(
            layers=max(int(config.num_hidden_layers), len(kept.layers)),
            kept=kept,
            dtype=self._cache_dtype(kept.head_dim),
            device=self.device,
        )
        self.context_length = room.context(options, requested)
        if options.split:
            self.context_length = tensor_parallel.min_over_ranks(self.context_length, self.device)
        self.cache = room.cache(options, self.context_length)
        self._lead = NO_FOLLOWERS
        self.coarse_experts = False  # True: rounded to four bits, unlike those of the reference
        self._lean = self._decoder(parts)
        self.prepared = self._prepared()
        self.costs = CostCurve()
        self.step_size = StepSize(longest_s=options.prompt_step_s)
        self.row_by_row = expected.require_same(self)
        if self._own_kernels or self.device.type == "cuda":
            freed_memory.release_freed_memory()

    def _parts(self) -> Parts | None:
        """The parts of the model on this device; None if `LeanDecoder` cannot run it."""
        if not is_lean(self.network):
            return None
        return split.split_model(self.network, self.options) if self.options.split else WHOLE

    def _quantize_parts(self, wrapped: bool) -> None:
        if wrapped:
            kind = self.network.config.model_type
            raise StartupFailure(
                f"quantization: {kind} cannot be split and quantized at once; leave one of both"
            )
        assert self._form is not None
        quantize(self.network, self._form)

    def _decoder(self, parts: Parts | None) -> LeanDecoder | None:
        if parts is not None:
            rows, compiled = self.cache.shape.rows, self.options.torch_compile
            decoder = LeanDecoder(self.network, rows, parts, compiled=compiled)
            if self.device.type == "cuda" and self.options.cuda_graphs:
                decoder.pad_steps(self.cache, self.options.max_draft_nodes)
            return decoder
        if self._own_kernels:
            cpu_linear.replace_linears(self.network)
            experts = cpu_parameters.replace_parameters(self.network, self._form)
            self.coarse_experts = experts and self._bits == 4
            cpu_elementwise.replace_activations(self.network)
        return None

    @property
    def _bits(self) -> int:
        """Bits of quantized weights; 0 if not quantized."""
        return self._form.weights if self._form else 0

    @property
    def _form(self) -> Format | None:
        """Format of quantized weights; None if not quantized."""
        return FORMATS.get(self.options.quantization)

    def _cache_dtype(self, head_dim: int) -> torch.dtype:
        dtype: torch.dtype = self.network.dtype
        if self.device.type != "cpu" or cpu_attention.supports(dtype, head_dim):
            return dtype
        # Torch's attention takes four times as long for a row on CPUs without bfloat16 arithmetic;
        # and together with our kernels, a row's result must not depend on the rest of the batch.
        kept = cpu_linear.has_bfloat16_arithmetic() and not self._own_kernels
        return dtype if kept else torch.float32

    def _prepared(self) -> Prepared | None:
        """The arrays for forwards in one compiled call; None if the model cannot be run so."""
        stack = self._lean.stack if self._lean is not None else None
        if stack is None or not stack.sees_everything:
            return None
        return Prepared(stack, self.cache, self.vocabulary_size, self.options.max_draft_nodes)

    def set_lead(self, lead: Lead) -> None:
        """Makes the other ranks repeat every operation of this one from now on."""
        self._lead = self.cache.lead = lead

    def acquire(self, text: Text | None = None) -> Slot:
        """A cache slot for a new session; given a text, one that may already hold its prefix.

        Raises Overloaded if none is free. Admission normally prevents that, but the engine's thread
        may be using the last one to try a forward.
        """
        most = self.options.max_draft_nodes
        try:
            if text is None:
                return self.cache.acquire(most)
            return prefixes.acquire(self.cache, most, text)
        except (IndexError, ValueError):  # ValueError: another thread has just taken the slot
            raise Overloaded("sessions: all slots are held") from None

    @torch.inference_mode()
    def forward(self, forwards: Sequence[Forward]) -> list[Tensor]:
        """Runs the forwards as one; returns each one's logits, float32 [rows, vocabulary].

        If it fails, the slots are truncated to the committed rows that they had before.
        """
        lengths = [forward.slot.length for forward in forwards]
        started = time.perf_counter_ns()
        try:
            logits = self._run(forwards)
        except Exception:
            for forward, length in zip(forwards, lengths, strict=True):
                forward.slot.truncate(length)
            raise
        elapsed = time.perf_counter_ns() - started
        rows, sessions = sum(forward.rows for forward in forwards), len(forwards)
        self.step_size.observe(rows, elapsed)
        # chunks of prompts need no logits, except the last one: their rows cost less than a draft's
        if not any(map(prompt_tokens, forwards)):
            self.costs.observe(rows, sum(lengths) // sessions, sessions, elapsed)
        return logits

    def run(self, passes: Passes) -> Sequence[Pass]:
        """Runs several forwards in sequence. If that fails: see `forward`."""
        slot = passes.slot
        length = slot.length
        try:
            done = passes.run()
        except Exception:
            slot.truncate(length)
            raise
        for forward in done:
            self.costs.observe(forward.rows, length, 1, forward.nanoseconds)
        return done

    def _run(self, forwards: Sequence[Forward]) -> list[Tensor]:
        prepared = self.prepared
        if prepared is not None and len(forwards) == 1 and prepared.can_run(forwards[0]):
            return [prepared.forward(forwards[0])]
        batch = lay_out(forwards)
        # transformers needs at least one row of logits: it is computed and discarded
        rows = batch.logit_rows or [0]
        self._lead.send(Run(batch, rows))
        try:
            logits = self.run_batch(batch, rows)[: len(batch.logit_rows)]
            if self.device.type == "cuda":
                # so that time and faults are attributed to this forward
                torch.cuda.synchronize(self.device)
        except Exception as error:  # the other ranks may be waiting for this one in the forward
            self._lead.handle_failure(error)
            raise
        counts = batch.logit_counts  # usually one session, and then split() can be saved
        return [logits] if len(counts) == 1 else list(logits.split(counts))

    def run_batch(self, batch: Batch, rows: Sequence[int]) -> Tensor:
        """Runs a batch; returns the logits after the given rows, float32 [rows, vocabulary]."""
        if self._lean is not None:
            return self._lean.logits(batch, self.cache, rows)
        return self._through_transformers(batch, rows)

    def _through_transformers(self, batch: Batch, rows: Sequence[int]) -> Tensor:
        output = self.network(
            input_ids=torch.tensor([batch.token_ids], device=self.device),
            position_ids=torch.tensor([batch.positions], device=self.device),
            use_cache=False,
            # Never an int: transformers would slice masks by it, but gets none here (Gemma 4).
            logits_to_keep=torch.tensor(rows, device=self.device),
            draftloop_batch=batch,
            draftloop_cache=self.cache,
        )
        logits: Tensor = output.logits[0]
        if len(logits) > len(rows):  # some models ignore logits_to_keep
            logits = logits[rows]
        return logits.float()

    def warm_up(self) -> None:
        """Compiles what verification needs, so that the first request does not wait for it."""
        logits = torch.zeros(1, self.vocabulary_size, device=self.device)
        plain = SamplingParameters(temperature=1.0)
        samplers = [
            Sampler(parameters, self.vocabulary_size, self.device)
            for parameters in (plain, replace(plain, top_p=0.9))
        ]
        for sampler in samplers:
            sampler.best(logits, [0], [[]])
        slot = self.acquire()
        try:
            if self.prepared is not None:
                forward = Forward(self, slot, (0,), (0,), (ROOT,))
                self.prepared.verify(forward, samplers[0].noise(1, 2), ChoiceSettings(1.0, 1))
                slot.truncate(0)
            slot.branch((0,), (ROOT,))
            slot.ancestors(0)
            slot.keep((0,))
            slot.advance((0,))
        finally:
            self.cache.release(slot)

    def measure_costs(self) -> None:
        """Measures the cost curve, which also warms up (`cost_measurement.measure`)."""
        measured = cost_measurement.measure(self)
        self.costs = CostCurve(measured)
        line = cost_line(measured)
        row_ns = line.times[-1] / line.rows[-1]
        self.step_size = StepSize(row_ns, self.options.prompt_step_s)

    @property
    def cost_curve(self) -> tuple[CostPoint, ...]:
        """The current cost curve, corrected by every forward since it was measured."""
        return self.costs.points()

    @property
    def forward_seconds(self) -> float:
        """Current time of a forward with one token; 0 if none was measured."""
        return self.costs.forward_seconds

    def info(self, *, strategies: Sequence[str] = (), prefix_caching: bool = False) -> ModelInfo:
        """The description of the model for the service's clients."""
        folder = self.options.folder
        return ModelInfo(
            model_name=folder.resolve().name,
            model_fingerprint=model_fingerprint(folder, self._made_for),
            vocabulary_fingerprint=vocabulary_fingerprint(folder),
            vocabulary_size=self.vocabulary_size,
            context_length=self.context_length,
            parameters=self.parameters,
            dtype=str(self.network.dtype).removeprefix("torch."),
            quantization=self.options.quantization,
            device=str(self.device),
            tensor_parallel_size=self.options.tensor_parallel_size,
            cost_inflation=self.options.inflate,
            prefix_caching=prefix_caching,
            max_sessions=self.options.max_sessions,
            max_draft_nodes=self.options.max_draft_nodes,
            strategies=tuple(strategies),
            stop_token_ids=self.stop_token_ids,
            cost_curve=self.cost_curve,
            instance_id=uuid.uuid4().hex[:12],
            processor=processor_id(processor_name(self.device)),
        )
