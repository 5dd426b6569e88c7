// `rekindle prune --from`: what a place that images are copied to keeps of them.
#pragma once

#include <string>

#include "cli/output.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

struct GlobalOptions;

struct PruneElsewhere {
  v1::PruneImagesRequest request;
  // As CopyImage's.
  std::string from;
  std::string bucket;
};

int PruneImagesElsewhere(const GlobalOptions& globals, const Output& output, const PruneElsewhere& what);

}  // namespace rekindle::cli
