// `rekindle fsck --from`: whether what was copied to a place is whole there.
#pragma once

#include <string>
#include <vector>

#include "cli/output.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

struct GlobalOptions;

struct FsckElsewhere {
  v1::FsckRequest request;
  std::vector<std::string> names;  // of an object store: only images of these; none: all
  // As CopyImage's.
  std::string from;
  std::string bucket;
};

int CheckElsewhere(const GlobalOptions& globals, const Output& output, const FsckElsewhere& what);

}  // namespace rekindle::cli
