// `rekindle rm --from`: images are removed from a place that they were copied to.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/output.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

struct GlobalOptions;

struct RemoveElsewhere {
  v1::RemoveImagesRequest request;
  // As CopyImage's.
  std::string from;
  std::string bucket;
};

// `place` is --from's; `tls` and `working_directory` as ParsePlace has them.
absl::StatusOr<RemoveElsewhere> RemovalFrom(v1::RemoveImagesRequest request, const std::string& place,
                                            bool tls, const std::string& working_directory);

int RemoveImagesElsewhere(const GlobalOptions& globals, const Output& output, const RemoveElsewhere& what);

}  // namespace rekindle::cli
