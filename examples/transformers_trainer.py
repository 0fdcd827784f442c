"""transformers' Trainer with VaSSO: a small GPT learns the licence by heart. Seconds on a CPU."""

import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from vasso.integrations.transformers import SharpnessAwareTrainer

text = (Path(__file__).parent.parent / "LICENSE").read_text()
alphabet = sorted(set(text))
numbers = torch.tensor([alphabet.index(character) for character in text])
pieces = [{"input_ids": piece, "labels": piece} for piece in numbers.unfold(0, 32, 8)]

torch.manual_seed(0)
small = {"n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
config = GPT2Config(vocab_size=len(alphabet), bos_token_id=0, eos_token_id=0, **small)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        max_steps=60,
        learning_rate=3e-3,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    trainer = SharpnessAwareTrainer(  # the Trainer's own AdamW, wrapped
        GPT2LMHeadModel(config), arguments, train_dataset=pieces, rho=0.05, theta=0.4
    )
    trainer.train()

opt = trainer.sharpness_aware
print(f"{opt.cost:.0f} gradients for {trainer.state.global_step} steps")
