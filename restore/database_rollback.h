// Files of an SQLite database, of which some without the others would damage it: the index of a log (X-shm)
// that speaks of what was cut off (X-wal), a log on a database that has gone on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "restore/file_rollback.h"

namespace rekindle::restore {

// Is the file in `fd`, or the one that begins so, the database itself?
bool BeginsAsDatabase(int fd);
bool BeginsAsDatabase(absl::string_view beginning);
inline constexpr size_t kDatabaseBeginning = 16;  // bytes by which it is known

// Is there something in the file that SQLite, which finds it beside a database, would apply to that? `fd`:
// not valid where it can't be read.
bool MayBeApplied(absl::string_view path, uint64_t size, int fd);

// By FileAction::database, with what is to be set aside of the database's later life: what can't be made as
// it was with all its files is left as it is, all of it. So is what a process has mapped: the job can't be
// it, which has ended.
void KeepDatabasesWhole(std::vector<FileAction>* plan);

}  // namespace rekindle::restore
