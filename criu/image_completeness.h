// Whether a folder of CRIU's images that was made and copied by others has all of a dump.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"

namespace rekindle::criu {

// `files`: the images by name ("core-12.img"), without those of pages. FailedPrecondition: one is not there
// without which a process could not come back, or would without what it had. DataLoss: one ends too early, or
// is damaged otherwise. Each names the file. What of the dump lies in no image of a process (pipes' contents,
// TCP connections) is not missed.
absl::Status CheckComplete(const std::map<std::string, std::string>& files);

}  // namespace rekindle::criu
