"""`TextSide`: what the text side of a model needs: tokenizer, chat template, default sampling.

Everything but weights, of a real model or a simulated one. Imports no torch. Loaded by whoever
turns text into requests: the server's API process, `LLM`.
"""

from __future__ import annotations

from dataclasses import dataclass

from refectory_server.config import ServerConfig
from refectory_server.engine.input_processor import InputProcessor
from refectory_server.engine.sampling_defaults import SamplingDefaults, load_sampling_defaults
from refectory_server.models.source import resolve_model
from refectory_server.runner.interface import RunnerFacts
from refectory_server.simulation_profile import load_profile
from refectory_server.tokenizer.chat_template import ChatTemplate
from refectory_server.tokenizer.load import load_chat_template, load_tokenizer
from refectory_server.tokenizer.simulated import (
    load_simulated_chat_template,
    load_simulated_tokenizer,
)
from refectory_server.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextSide:
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    default_sampling: SamplingDefaults
    max_logprobs: int

    @classmethod
    def load(cls, config: ServerConfig) -> TextSide:
        """Raises `StartupError` for missing or damaged files."""
        model = config.model
        if config.simulator.simulate is not None:
            profile = load_profile(config.simulator.simulate)
            tokenizer = load_simulated_tokenizer(profile)
            template = load_simulated_chat_template(profile, model.chat_template, tokenizer)
            return cls(tokenizer, template, SamplingDefaults(), model.max_logprobs)
        files = resolve_model(model.model)
        tokenizer = load_tokenizer(files)
        template = load_chat_template(files, model.chat_template, tokenizer.special_tokens)
        defaults = load_sampling_defaults(files, model.generation_config)
        return cls(tokenizer, template, defaults, model.max_logprobs)

    def make_input_processor(self, facts: RunnerFacts) -> InputProcessor:
        """For a loaded runner with these facts."""
        return InputProcessor(
            self.tokenizer,
            self.chat_template,
            facts,
            default_sampling=self.default_sampling,
            max_logprobs=self.max_logprobs,
        )
