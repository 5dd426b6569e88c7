// Why images are kept that nobody has named: what supervised jobs, functions and templates need.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/function_image_uses.h"
#include "daemon/templates.h"
#include "dedup_store/store.h"
#include "rekindle/v1/supervised_job.pb.h"

namespace rekindle::daemon {

class Node;

// As it was when it was made: to be asked before images are removed. Thread-compatible.
class ImageNeeds {
 public:
  // What supervised jobs that have not ended go on from, whichever machine supervises them.
  struct BySupervised {
    std::multimap<std::string, std::pair<v1::RestartPoint, std::string>> points;  // by image, with the job
    // By job: its record, which can't be read, so that each of its images may be needed.
    std::map<std::string, std::string> unreadable;
    // Of those jobs: the digest of the image that it was started from; empty: that can't be read either, and
    // may be any.
    std::map<std::string, std::string> first_images;
  };

  // `but_for_job`: a supervised job that asks itself, whose own images it knows; empty: none. Fails where it
  // can't be told what is needed.
  static absl::StatusOr<ImageNeeds> Of(Node& node, absl::string_view but_for_job = "");

  // Why the image is to be kept; nothing: nobody needs it.
  std::vector<std::string> ReasonsFor(const store::ImageInfo& image) const;

 private:
  ImageNeeds(BySupervised supervised, FunctionImageUses functions, std::vector<TemplateRecord> templates)
      : supervised_(std::move(supervised)),
        functions_(std::move(functions)),
        templates_(std::move(templates)) {}

  BySupervised supervised_;
  FunctionImageUses functions_;
  std::vector<TemplateRecord> templates_;
};

}  // namespace rekindle::daemon
