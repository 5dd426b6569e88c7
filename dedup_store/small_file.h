// Files of the store's own folder that are read as a whole.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle::store {

inline constexpr uint64_t kMostOfSmallFile = uint64_t{1} << 20;

// NotFound: there is none. DataLoss: what has the name is no regular file (a link is not followed, a FIFO not
// waited for), or has more than `most` bytes: nothing that a store has written. Thread-safe.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, uint64_t most = kMostOfSmallFile);

// Opens a file that is there, without following a link or waiting for who opens a FIFO; waits for one whose
// lease another has (a file server's), as open() does. A descriptor, or -1 with errno. Thread-safe.
int OpenOwnFile(const std::string& path, int flags);

// What a file of a store, opened by OpenOwnFile, is wrong as; `error` is errno of opening it,
// or 0 with `fd`. OK: it is a regular file, or it can't be opened for another reason.
absl::Status CheckIsRegular(int error, int fd, const std::string& path);

}  // namespace rekindle::store
