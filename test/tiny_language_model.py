"""A real language model that is small enough for tests: a random two-layer Llama with a tokenizer of its own."""

from __future__ import annotations

from pathlib import Path

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = [
    '"agent_1": Interact(onion_dispenser_1), Interact(pot_1), Wait_entity(pot_1, status, ==, ready)\n"agent_2":',
    "Wait_agents(agent_1, done, 2) & Wait_entity(counter_3, item, ==, dish), Move_to(1, 2), Face(north)",
    "Plan for overcooked with 2 agents. x 3 y 1 nothing holding onion dish soup filling full cooking time_left",
]


def save_tiny_model(folder: Path) -> Path:
    """Write weights and tokenizer; the folder is a model like any other."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|im_end|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>", bos_token="<|im_start|>"
    )
    fast.chat_template = CHAT
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(fast),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            eos_token_id=fast.eos_token_id,
            bos_token_id=fast.bos_token_id,
            pad_token_id=fast.pad_token_id,
        )
    )
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder
