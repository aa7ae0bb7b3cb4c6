"""Where gradients of several ranks become one. The only room that may import torch.distributed."""
