// Which images the functions of a store start from: to be asked before images are removed that nobody has
// named.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace rekindle::daemon {

// As functions' records say when it is made, also where no daemon has them at work. Thread-compatible.
class FunctionImageUses {
 public:
  static absl::StatusOr<FunctionImageUses> Of(const std::string& store);

  // Why an image of this reference is to be kept; nothing: no function needs it.
  std::vector<std::string> ReasonsFor(const std::string& reference) const;

 private:
  std::multimap<std::string, std::string> users_;  // by reference
  std::vector<std::string> unreadable_;            // functions, of which any image may be
};

}  // namespace rekindle::daemon
