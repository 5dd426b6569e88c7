// Modules of functions' layers, as far as images go.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/file_rights.h"
#include "functions/function_catalog.h"
#include "functions/function_spec.h"

namespace rekindle::daemon {

// Which of these modules one of the layers (folders) has; those that a .pth file leads to are not seen.
// Looked for with the rights of the layers' owner, who may have put links there since.
std::vector<std::string> ModulesOfLayers(const functions::Runtime& runtime, const Owner& owner,
                                         const std::vector<std::string>& layers,
                                         const std::vector<std::string>& modules);

// Was it a module of these that could not be loaded? Both runtimes say it so.
bool CanNotLoadOneOf(const std::vector<std::string>& modules, const absl::Status& status);

// What it was to have loaded before it is started, also what could not be.
functions::FunctionImages WithNotLoaded(functions::FunctionImages images);

}  // namespace rekindle::daemon
