from . import gymapi as gymapi
from . import gymtorch as gymtorch
from . import gymutil as gymutil
from . import terrain_utils as terrain_utils
from . import torch_utils as torch_utils
