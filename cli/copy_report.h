// What is told of images that were sent somewhere.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "cli/output.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// What follows an image's name: "copied to X", "is at X already".
struct CopyWords {
  std::string copied, already;
};

// "train:7 copied to X: 1.2 MiB for 100 MiB of memory\n"
std::string SentText(const v1::TransferResult& sent, absl::string_view where);

void Tell(const Output& output, const CopyWords& words, const v1::TransferResult& result, bool was_there);
// Nothing was sent.
void TellWasThere(const Output& output, const CopyWords& words, const v1::Image& image);

}  // namespace rekindle::cli
