// A simulation over time as one SVG file that needs nothing else: memory, disk, and slow starts in each ten
// minutes.
#pragma once

#include <string>

#include "functions/simulator.h"

namespace rekindle::functions {

std::string PlotSvg(const SimulationResult& result, const SimulationOptions& options);

}  // namespace rekindle::functions
