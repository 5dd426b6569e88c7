// Making a sandbox: by the program rekindle-sandbox, and by the init of a template's sandbox for those of the
// template's children, which must lie in its PID namespace. Private to the program.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::restore {

struct MadeSandbox {
  pid_t pid = 0;  // as the maker sees it
  UniqueFd pidfd;
};

// clone3 with these namespaces. 0 in the child.
absl::StatusOr<pid_t> CloneInto(uint64_t namespaces, int* pidfd);

// The request `make` of sandbox_protocol.h. Takes the descriptors. The calling process has one thread.
absl::StatusOr<MadeSandbox> MakeSandbox(const nlohmann::json& request, std::vector<UniqueFd>& descriptors);

}  // namespace rekindle::restore
