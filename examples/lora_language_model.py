"""A causal language model with peft's LoRA, eight ways side by side. Seconds on a CPU.

The model is tiny and random. For a real one: `python lora_language_model.py --model NAME`, the name
of a model on the hub.
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from vasso import BAR, SAM, BiLoRA, FlatLoRA, PreconditionedSAM, VaSSO

parser = argparse.ArgumentParser()
parser.add_argument("--model", help="a causal language model on the hub; none: tiny and random")
parser.add_argument("--steps", type=int, default=12)
chosen = parser.parse_args()

text = (Path(__file__).parent.parent / "LICENSE").read_text()
if chosen.model:
    tokens = torch.tensor(AutoTokenizer.from_pretrained(chosen.model)(text)["input_ids"])
else:
    alphabet = sorted(set(text))
    tokens = torch.tensor([alphabet.index(character) for character in text])
pieces = tokens.unfold(0, 32, 16)


def adapted():
    """The model with adapters of rank 4; all else is frozen. peft keeps adapters in float32."""
    torch.manual_seed(0)
    if chosen.model:
        model = AutoModelForCausalLM.from_pretrained(chosen.model, dtype="auto")
    else:
        small = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
        small |= {"num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": len(alphabet)}
        model = LlamaForCausalLM(LlamaConfig(**small))
    lora = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=16, target_modules="all-linear")
    return get_peft_model(model, lora)


# one gradient a step; none of them but Flat-LoRA needs a closure
def bar(base, model, by):
    return BAR(base, alpha=1.0, by=by, model=model)


ways = {
    "LoRA": lambda base, model: base,
    "LoRA, nBAR": partial(bar, by="gradients"),
    "LoRA, oBAR": partial(bar, by="weights"),
    "LoRA, Bi-LoRA": lambda base, model: BiLoRA(base, rho=0.05, model=model),
    "LoRA, Flat-LoRA": lambda base, model: FlatLoRA(base, total=chosen.steps, model=model),
    # two gradients a step, on the adapters alone: the optimizer has no other weights
    "LoRA, SAM": lambda base, model: SAM(base, rho=0.05, model=model),
    "LoRA, VaSSO": lambda base, model: VaSSO(base, rho=0.05, theta=0.4, model=model),
    "LoRA, preconditioned": lambda base, model: PreconditionedSAM(base, rho=0.05, model=model),
}
for name, wrap in ways.items():
    model = adapted()
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = wrap(torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.0), model)
    for step in range(chosen.steps):
        batch = pieces[torch.arange(8 * step, 8 * step + 8) % len(pieces)]

        def closure(opt=opt, model=model, batch=batch):
            opt.zero_grad()
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            return loss

        loss = opt.step(closure)
    cost = getattr(opt, "cost", chosen.steps) / chosen.steps
    print(f"{name:22} last training loss {loss:.3f}, {cost:g} gradients a step")
