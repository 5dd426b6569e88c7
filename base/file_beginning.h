// Tells a file that was appended to from one that was edited or written anew: by what it begins with.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace rekindle {

// A fingerprint of a file's first `bytes` bytes: of all of them if they are few, else of the first and the
// last ones, so that its cost does not grow with the file. Never 0. The same on all machines; anybody can
// make two files of one fingerprint. OutOfRange: the file is shorter. `fd` has to be open for reading; its
// position stays as it is.
absl::StatusOr<uint64_t> FileBeginning(int fd, uint64_t bytes);

// The same of what lies between those first and last ones: of pages at places that depend on `bytes` alone,
// some at most. Of a file that FileBeginning reads as a whole it tells nothing more.
absl::StatusOr<uint64_t> FileMiddle(int fd, uint64_t bytes);

// Does FileBeginning read all of so long a file?
bool BeginningIsAll(uint64_t bytes);

// The same of the last of its first `bytes` bytes alone: a page at most, which a program that has just
// written them finds in memory. A file's head may be written once more when the rest is, its end only with
// all of it.
absl::StatusOr<uint64_t> FileEnding(int fd, uint64_t bytes);

}  // namespace rekindle
