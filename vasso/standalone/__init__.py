"""Methods that are not the one step of `SharpnessAware`: SAMPa, Entropy-SGD, those of LoRA."""

from vasso.standalone.balance import BAR as BAR
from vasso.standalone.bi_lora import BiLoRA as BiLoRA
from vasso.standalone.entropy_sgd import EntropySGD as EntropySGD
from vasso.standalone.flat_lora import FlatLoRA as FlatLoRA
from vasso.standalone.sampa import SAMPa as SAMPa
