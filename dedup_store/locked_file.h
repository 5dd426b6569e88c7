// New files that gc leaves alone: it removes what is in no catalog and nobody has locked.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "dedup_store/block_io.h"

namespace rekindle::store {

// A new file, locked exclusively until it is closed. `path` is asked for a fresh name each time that it is
// called: a gc may take the file for a dead writer's before it is locked, and remove it; another one is made
// then. `direct`: for a WriteQueue; otherwise for WriteAt. A file that could be made but not locked is
// removed.
absl::StatusOr<std::unique_ptr<BlockFile>> CreateLocked(BlockIo* io, bool direct,
                                                        const std::function<std::string()>& path);

// Writes a small file in the store's tmp/, syncs it and removes it. A disk that takes it is there: what it
// refuses to give at that moment it refuses because it must.
absl::Status WriteProbe(BlockIo* io, const std::string& store_path);

}  // namespace rekindle::store
