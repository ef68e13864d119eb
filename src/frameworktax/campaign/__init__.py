"""A campaign carries a study out: jobs in order, budgets, what the store already holds.

An engine measures, this decides what and when.
"""

from frameworktax.campaign.engines import platforms
from frameworktax.campaign.look import Outlook, outlook
from frameworktax.campaign.results import SweepResults
from frameworktax.campaign.run import sweep

__all__ = ["Outlook", "SweepResults", "outlook", "platforms", "sweep"]
