"""The known deviations of Kafka builds from their KIPs, as data; one file for each KIP.

:mod:`suites.observing` compares checks with them.
"""

from __future__ import annotations

from suites.deviations.kip_18 import *  # noqa: F403  # each file has deviations and nothing else
from suites.deviations.kip_36 import *  # noqa: F403
from suites.deviations.kip_112 import *  # noqa: F403
from suites.deviations.kip_113 import *  # noqa: F403
from suites.deviations.kip_392 import *  # noqa: F403
from suites.deviations.kip_455 import *  # noqa: F403
from suites.deviations.kip_853 import *  # noqa: F403
from suites.deviations.kip_866 import *  # noqa: F403
from suites.deviations.kip_932 import *  # noqa: F403
from suites.deviations.kip_1066 import *  # noqa: F403
from suites.deviations.mistakes import *  # noqa: F403
