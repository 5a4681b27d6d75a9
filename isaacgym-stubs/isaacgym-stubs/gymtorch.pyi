import torch

from .gymapi import Tensor

def wrap_tensor(gym_tensor: Tensor) -> torch.Tensor: ...
def unwrap_tensor(torch_tensor: torch.Tensor) -> Tensor: ...  # contiguous tensors only
