// What a roll-back cuts off a log is kept beside it: PATH.rekindle-tail-20261122T120001Z.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace rekindle::restore {

// Is what lies in `fd` from `begin` to `end` text, by its first and last pages? UTF-8 and Latin-1 alike, and
// what terminals understand; no NUL, and no other control characters.
bool LooksLikeText(int fd, uint64_t begin, uint64_t end);

// The name of the copy that is made at `now`, for a file of this name.
std::string TailName(absl::string_view name, absl::Time now);

// A copy, and how far it goes. Movable.
struct KeptTail {
  std::string name;     // in its folder
  UniqueFd copy;        // for writing, at its end
  uint64_t end = 0;     // in the file
  uint64_t ending = 0;  // of the file, up to there (FileEnding); 0: not known
};

// Copies [begin, end) of `fd` into a new file in `folder`, under `name`, or `name` with a number where that
// is taken; gives it the owner and mode of `fd`. It is on the disk when SyncTail was called. `with_rights`
// calls its argument with the rights under which the file is to be made. On failure nothing is left.
absl::StatusOr<KeptTail> KeepTail(int fd, uint64_t begin, uint64_t end, int folder, const std::string& name,
                                  const std::function<void(const std::function<void()>&)>& with_rights);

// Thread-safe, for different ones.
absl::Status SyncTail(const KeptTail& tail);

// Adds what the file has got since, up to `end`, and syncs that. False, with nothing added: it was not only
// appended to, so that the copy is that of another version.
absl::StatusOr<bool> AddToTail(int fd, uint64_t end, KeptTail* tail);

}  // namespace rekindle::restore
