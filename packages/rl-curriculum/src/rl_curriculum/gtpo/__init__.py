"""x"""

from rl_curriculum.gtpo.advantages import *
from rl_curriculum.gtpo.advantages import mean_entropy
from rl_curriculum.gtpo.entropy import token_entropy
from rl_curriculum.gtpo.loss import *
from rl_curriculum.gtpo.tabular import *
from rl_curriculum.gtpo.methods import *
