"""One thread for torch in every test process: two on two shared cores wait for each other longer than they compute."""

import torch

torch.set_num_threads(1)
