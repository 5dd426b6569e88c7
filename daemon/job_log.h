// Where a job's output goes: into a file that should be its own, have a name, and room.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/repeated_field.h"
#include "rekindle/v1/job_manifest.pb.h"
#include "rekindle/v1/supervision.pb.h"

namespace rekindle::daemon {

class Node;
struct Caller;

// That no other job writes to the log that a new one is to have: when one of the two is brought back, what
// the other has written would be cut off with its own. FailedPrecondition names that job, where one of them
// is `supervised`; of others a warning does. A job named `except` is the one that is to be started, as it was
// before. Of the jobs of other users only those count that have it under the same path, where the file is
// that user's.
absl::Status CheckLogIsOwn(Node& node, const Caller& caller, const std::string& log, bool supervised,
                           const std::string& except, std::vector<std::string>* warnings);

// What was cut off files to which others write as well, who have not gone back: a warning for each file.
// `job`: the PIDs of the job that the files were cut for. Those who have them open on its behalf are no
// others: we, `caller` (0: nobody), and from whom the two descend, as a batch script whose output is the
// job's. Looks at what all processes have open.
std::map<std::string, std::string> WarnOfOthersCut(
    const google::protobuf::RepeatedPtrField<v1::FileRollback>& files, std::vector<pid_t> job, pid_t caller);

// That a file's file system has no room for a word of output, and what to do; empty: it has, as far as can be
// told, or the file is none of a disk.
std::string WarnOfFullLog(const std::string& log, uid_t user);

// The log of a job that has just come back, where its image calls it `log`: it may have another name by now,
// or none, of which a warning tells.
std::string LogOfRestored(pid_t root, const std::string& log, const v1::JobManifest& manifest,
                          std::vector<std::string>* warnings);

}  // namespace rekindle::daemon
