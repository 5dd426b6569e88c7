#include "daemon/early_variables.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace rekindle::daemon {
namespace {

// Names, and beginnings of names, which end with '*'; ends of names begin with it.
constexpr absl::string_view kOfInterpreters[] = {
    "LD_*",           "MALLOC_*",       "GLIBC_TUNABLES",     "PYTHONHASHSEED",   "PYTHONMALLOC",
    "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONFAULTHANDLER", "PYTHONUNBUFFERED", "PYTHONDEVMODE",
    "PYTHONUTF8",     "PYTHONHOME",     "PYTHONTRACEMALLOC",  "NODE_OPTIONS",     "UV_*"};
constexpr absl::string_view kOfModules[] = {
    "*_NUM_THREADS",      "OMP_*",      "KMP_*",        "GOMP_*",    "MKL_*",
    "OPENBLAS_*",         "NUMBA_*",    "NUMEXPR_*",    "HF_*",      "TF_*",
    "TRANSFORMERS_CACHE", "TORCH_HOME", "MPLCONFIGDIR", "MPLBACKEND"};

bool Matches(absl::string_view name, absl::string_view pattern) {
  if (pattern.front() == '*') return absl::EndsWith(name, pattern.substr(1));
  if (pattern.back() == '*') return absl::StartsWith(name, pattern.substr(0, pattern.size() - 1));
  return name == pattern;
}

template <size_t N>
std::vector<std::string> SetOnes(const functions::FunctionSpec& spec,
                                 const absl::string_view (&patterns)[N]) {
  std::vector<std::string> found;
  for (const auto& [name, value] : spec.environment) {
    const auto matches = [&name = name](absl::string_view pattern) { return Matches(name, pattern); };
    if (std::any_of(std::begin(patterns), std::end(patterns), matches)) found.push_back(name);
  }
  return found;
}

}  // namespace

std::vector<std::string> WarnOfEarlyVariables(const functions::FunctionSpec& spec,
                                              const std::vector<std::string>& modules) {
  std::vector<std::string> warnings;
  if (spec.runtime.kind == functions::RuntimeKind::kProvided) return warnings;
  if (const auto early = SetOnes(spec, kOfInterpreters); !early.empty()) {
    warnings.push_back(
        absl::StrCat(absl::StrJoin(early, ", "),
                     ": without effect where it counts only when the interpreter starts, which "
                     "it has done before the function's environment is there"));
  }
  if (const auto early = SetOnes(spec, kOfModules); !early.empty() && !modules.empty()) {
    warnings.push_back(
        absl::StrCat(absl::StrJoin(early, ", "),
                     ": without effect on what is loaded before the function's environment is there (",
                     absl::StrJoin(modules, ", "),
                     "): set it in the code, or deploy with --deps none if it must count then"));
  }
  return warnings;
}

}  // namespace rekindle::daemon
