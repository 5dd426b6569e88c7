#include "daemon/image_needs.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/record_file.h"
#include "base/status.h"
#include "daemon/node.h"
#include "daemon/supervised_record.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::daemon {
namespace {

// Of supervised jobs.
std::vector<std::string> ReasonsOfSupervised(const ImageNeeds::BySupervised& needed,
                                             const store::ImageInfo& image) {
  std::vector<std::string> reasons;
  const auto [begin, end] = needed.points.equal_range(image.reference);
  for (auto it = begin; it != end; ++it) {
    const auto& [point, job] = it->second;
    if (point.digest().empty() || point.digest() == image.digest)
      reasons.push_back(absl::StrCat("supervised job '", job, "' goes on from it"));
  }
  const auto label = image.labels.find(v1::kJobNameLabel);
  for (const auto& [job, record] : needed.unreadable) {
    const auto first = needed.first_images.find(job);
    const bool began_with_it =
        first != needed.first_images.end() && (first->second.empty() || first->second == image.digest);
    if (!began_with_it && (label == image.labels.end() || label->second != job)) continue;
    reasons.push_back(
        absl::StrCat("supervised job '", job, "' may go on from it: its record ", record, " can't be read"));
  }
  return reasons;
}

// Their supervisor removes its own ones itself; of those that others took the newest may be all there is.
absl::StatusOr<ImageNeeds::BySupervised> FindNeeded(const Node& node, absl::string_view but_for_job) {
  ImageNeeds::BySupervised needed;
  const std::string directory = SupervisedDirectory(node.options().store);
  RK_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListSupervisedRecords(directory));
  for (const std::string& name : names) {
    if (name == but_for_job) continue;
    absl::StatusOr<v1::SupervisedJobRecord> record = ReadSupervisedRecord(directory, name);
    if (absl::IsNotFound(record.status())) continue;  // it has just been removed
    if (!record.ok()) {
      const std::string path = SupervisedRecordPath(directory, name);
      needed.unreadable[name] = path;
      const absl::StatusOr<v1::RestartPoint> first = ReadFirstImage(directory, name);
      if (!absl::IsNotFound(first.status())) needed.first_images[name] = first.ok() ? first->digest() : "";
      // Of a newer version's what is known.
      ReadRecordFile(path, &record.emplace()).IgnoreError();
    } else if (record->ended()) {
      continue;
    }
    for (int i = 0; i < record->points_size(); ++i) {
      const v1::RestartPoint& point = record->points(i);
      if (point.ours() || i + 1 == record->points_size())
        needed.points.emplace(point.image(), std::pair(point, name));
    }
  }
  return needed;
}

// Why templates that are up keep the image: a clone of it takes a fork's place.
std::vector<std::string> ReasonsOfTemplates(const std::vector<TemplateRecord>& up,
                                            const store::ImageInfo& image) {
  std::vector<std::string> reasons;
  for (const TemplateRecord& record : up) {
    if (record.image == image.reference && record.digest == image.digest)
      reasons.push_back(absl::StrCat("template '", record.name, "' is up from it"));
  }
  return reasons;
}

}  // namespace

absl::StatusOr<ImageNeeds> ImageNeeds::Of(Node& node, absl::string_view but_for_job) {
  RK_ASSIGN_OR_RETURN(BySupervised supervised, FindNeeded(node, but_for_job));
  RK_ASSIGN_OR_RETURN(FunctionImageUses functions, FunctionImageUses::Of(node.options().store));
  return ImageNeeds(std::move(supervised), std::move(functions), node.templates().List());
}

std::vector<std::string> ImageNeeds::ReasonsFor(const store::ImageInfo& image) const {
  std::vector<std::string> reasons = ReasonsOfSupervised(supervised_, image);
  for (std::string& reason : functions_.ReasonsFor(image.reference)) reasons.push_back(std::move(reason));
  for (std::string& reason : ReasonsOfTemplates(templates_, image)) reasons.push_back(std::move(reason));
  return reasons;
}

}  // namespace rekindle::daemon
