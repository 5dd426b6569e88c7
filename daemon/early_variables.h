// Environment variables that count only before a function's own environment is there: its interpreter, and
// the modules of its dependency image, were started and loaded without it.
#pragma once

#include <string>
#include <vector>

#include "functions/function_spec.h"

namespace rekindle::daemon {

// One sentence for each kind that the function sets, with the cure; none for a runtime without images.
// `modules`: of its dependency image. Thread-safe.
std::vector<std::string> WarnOfEarlyVariables(const functions::FunctionSpec& spec,
                                              const std::vector<std::string>& modules);

}  // namespace rekindle::daemon
