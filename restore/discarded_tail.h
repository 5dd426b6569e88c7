// What a roll-back cuts off a log is kept beside it: PATH.rekindle-tail-20261122T120001Z.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rekindle::restore {

// Is what lies in `fd` from `begin` to `end` text, by its first and last pages? UTF-8 and Latin-1 alike, and
// what terminals understand; no NUL, and no other control characters.
bool LooksLikeText(int fd, uint64_t begin, uint64_t end);

// The name of the copy that is made at `now`, for a file of this name.
std::string TailName(absl::string_view name, absl::Time now);

// Copies [begin, end) of `fd` into a new file in `folder`, under `name`, or `name` with a number where that
// is taken; gives it the owner and mode of `fd`, and syncs it. `make` calls its argument with the rights
// under which the file is to be made. Returns the copy's name. On failure nothing is left.
absl::StatusOr<std::string> KeepTail(int fd, uint64_t begin, uint64_t end, int folder,
                                     const std::string& name,
                                     const std::function<void(const std::function<void()>&)>& with_rights);

}  // namespace rekindle::restore
