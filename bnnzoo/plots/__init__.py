"""Pictures of arrays with matplotlib. This package does not depend on runs, models or JAX."""

from bnnzoo.plots._picture import FORMATS as FORMATS
from bnnzoo.plots._picture import Picture as Picture
from bnnzoo.plots._picture import picture_format as picture_format
from bnnzoo.plots._style import evenly_spaced as evenly_spaced
from bnnzoo.plots.bands import Band as Band
from bnnzoo.plots.bands import Curve as Curve
from bnnzoo.plots.bands import Of as Of
from bnnzoo.plots.bands import band as band
from bnnzoo.plots.bands import bands as bands
from bnnzoo.plots.calibration import COVERAGE_LEVELS as COVERAGE_LEVELS
from bnnzoo.plots.calibration import coverage as coverage
from bnnzoo.plots.calibration import reliability as reliability
from bnnzoo.plots.chains import autocorrelation as autocorrelation
from bnnzoo.plots.chains import rank as rank
from bnnzoo.plots.chains import trace as trace
from bnnzoo.plots.density import density_of_one as density_of_one
from bnnzoo.plots.density import density_of_two as density_of_two
from bnnzoo.plots.histograms import pit as pit
from bnnzoo.plots.histograms import sbc as sbc
from bnnzoo.plots.loss import Descent as Descent
from bnnzoo.plots.loss import loss as loss
from bnnzoo.plots.ood import ood as ood
from bnnzoo.plots.slices import Slice as Slice
from bnnzoo.plots.slices import slices as slices
from bnnzoo.plots.steps import Statistic as Statistic
from bnnzoo.plots.steps import steps as steps
