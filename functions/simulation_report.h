// What a simulation found: as text for people and as JSON.
#pragma once

#include <string>

#include "functions/simulator.h"

namespace rekindle::functions {

// A table, a line for each policy, and how the first four compare with ours.
std::string ReportText(const SimulationResult& result, const SimulationOptions& options);
// One line. Milliseconds and bytes; names end in their units.
std::string ReportJson(const SimulationResult& result, const SimulationModel& model,
                       const SimulationOptions& options);

}  // namespace rekindle::functions
