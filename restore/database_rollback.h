// Files of an SQLite database, of which some without the others would damage it: the index of a log (X-shm)
// that speaks of what was cut off (X-wal), a log on a database that has gone on.
#pragma once

#include <vector>

#include "restore/file_rollback.h"

namespace rekindle::restore {

// Is the file in `fd` the database itself?
bool BeginsAsDatabase(int fd);

// By FileAction::database: what can't be made as it was with all its files is left as it is, all of it. So is
// what a process has mapped: the job can't be it, which has ended.
void KeepDatabasesWhole(std::vector<FileAction>* plan);

}  // namespace rekindle::restore
