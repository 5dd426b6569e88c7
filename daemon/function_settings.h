// What a request changes of what a function is.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::daemon {

// What `request` does not give stays. InvalidArgument: a variable that is to be removed is not there.
inline absl::Status ChangeSettings(const v1::SetFunctionRequest& request, v1::FunctionSpec* spec) {
  if (request.has_memory_bytes()) spec->set_memory_bytes(request.memory_bytes());
  if (request.has_timeout_ms()) spec->set_timeout_ms(request.timeout_ms());
  if (request.has_start_timeout_ms()) spec->set_start_timeout_ms(request.start_timeout_ms());
  if (request.has_provisioned()) spec->set_provisioned(request.provisioned());
  if (request.has_max_instances()) spec->set_max_instances(request.max_instances());
  if (request.has_cpus()) spec->set_cpus(request.cpus());
  if (request.has_network()) spec->set_network(request.network());
  if (request.has_description()) spec->set_description(request.description());
  if (request.has_code()) spec->set_code(request.code());
  if (request.no_layers()) {
    spec->clear_layers();
    spec->clear_venv();
  }
  if (!request.layers().empty()) *spec->mutable_layers() = request.layers();
  if (request.has_venv()) spec->set_venv(request.venv());
  for (const std::string& variable : request.remove_environment()) {
    if (spec->mutable_environment()->erase(variable) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("function '", spec->name(), "' has no variable '",
                                                     variable, "' that could be removed"));
    }
  }
  for (const auto& [variable, value] : request.environment())
    (*spec->mutable_environment())[variable] = value;
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
