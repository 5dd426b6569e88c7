// The steps of a roll-back (file_rollback.h) that discard what files have got since.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "restore/file_rollback.h"

namespace rekindle::restore {

// The error names the file, and the cure where there is one.
absl::Status AboutFile(const absl::Status& status, const FileAction& action);
// For one after which some files have changed.
absl::Status Halfway(const absl::Status& status, const FileAction& action);

// Copies what the plan discards. It is on the disk when SyncTail was called for the last of the action's
// tails.
absl::Status KeepTailOf(const WithRights& with_rights, FileAction& action);
// Copies what has come since then, too; into another file, where what is kept was not only appended to.
absl::Status CatchUpTailOf(const WithRights& with_rights, FileAction& action);
void RemoveTails(const WithRights& with_rights, FileAction& action);

// CatchUpWithFiles of one, and then cuts it off.
absl::Status CutOneOff(const WithRights& with_rights, FileAction& action);

}  // namespace rekindle::restore
