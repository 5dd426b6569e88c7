// What was done with files that a job wrote, or would be, for people.
#pragma once

#include <string>

#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// One line a file. `dry_run`: what would be done, and what would stay as it is; otherwise only what has
// changed or could not be changed. Empty: there is nothing to tell.
std::string RollbackTable(const google::protobuf::RepeatedPtrField<v1::FileRollback>& files, bool dry_run);

}  // namespace rekindle::cli
