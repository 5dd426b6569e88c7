// Folders with a user's code: he may read them, and neither he nor any other user can change them, whatever
// his processes do while functions run from there.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_rights.h"

namespace rekindle::functions {

// The permissions that a file or folder with these has when it is sealed: who may read or execute it is as
// its owner might, for nobody else gets there; nobody may write. The same for what is sealed already.
mode_t SealedMode(mode_t mode);

// Makes all in `folder`, and itself, the service's own. The owner gets through `folder` by an entry in its
// access control list. Entries that are not his are left alone. Nothing is done where the owner is the
// service's user. Unimplemented: the file system has no such lists; then nothing was changed. May be
// repeated, also where it was interrupted. Thread-safe.
absl::Status SealFolder(const std::string& folder, const Owner& owner);

// The same where there are such lists; else the folder with its contents, which are the owner's, stays his,
// and that is logged. `folder`: new.
absl::Status SealOrGive(const std::string& folder, const Owner& owner);

bool IsSealed(const std::string& folder, const Owner& owner);

// Whose the contents of a sealed folder are, or of one that is not: its user's.
absl::StatusOr<uid_t> ReaderOf(const std::string& folder);

}  // namespace rekindle::functions
