"""x"""

from rl_curriculum.gtpo.advantages import *
from rl_curriculum.gtpo.advantages import mean_entropy
from rl_curriculum.gtpo.entropy import token_entropy
from rl_curriculum.gtpo.loss import *
from rl_curriculum.gtpo.tabular import *
from rl_curriculum.gtpo.methods import *
from rl_curriculum.gtpo.tasks import *
from rl_curriculum.gtpo.tiny import *
from rl_curriculum.gtpo.tiny_trainer import *
