"""What is not the one step of `SharpnessAware`: SAMPa and Entropy-SGD."""

from vasso.steppers.entropy_sgd import EntropySGD as EntropySGD
from vasso.steppers.sampa import SAMPa as SAMPa
