#include "daemon/function_image_uses.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "daemon/dependency_images.h"
#include "daemon/function_instances.h"
#include "functions/function_record_file.h"

namespace rekindle::daemon {

absl::StatusOr<FunctionImageUses> FunctionImageUses::Of(const std::string& store) {
  FunctionImageUses uses;
  const std::string directory = functions::FunctionsDirectory(store);
  if (!PathExists(directory)) return uses;
  RK_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(directory));
  for (const std::string& name : names) {
    if (!functions::CheckFunctionName(name).ok()) continue;
    const absl::StatusOr<functions::FunctionRecord> record =
        functions::ReadFunctionRecord(absl::StrCat(directory, "/", name, "/", functions::kRecordFile));
    if (absl::IsNotFound(record.status())) continue;  // it is being deployed or removed
    if (!record.ok()) {
      uses.unreadable_.push_back(name);
      continue;
    }
    for (const std::string& image : {record->images.dependency_image, record->images.function_image}) {
      if (!image.empty()) uses.users_.emplace(image, name);
    }
  }
  return uses;
}

std::vector<std::string> FunctionImageUses::ReasonsFor(const std::string& reference) const {
  std::vector<std::string> reasons;
  const auto [begin, end] = users_.equal_range(reference);
  for (auto user = begin; user != end; ++user)
    reasons.push_back(absl::StrCat("function '", user->second, "' starts from it"));
  if (absl::StartsWith(reference, kFunctionImages) || absl::StartsWith(reference, kDependencyImages)) {
    for (const std::string& name : unreadable_) {
      reasons.push_back(
          absl::StrCat("function '", name, "' may start from it: its record can't be read (rekindle fn ls)"));
    }
  }
  return reasons;
}

}  // namespace rekindle::daemon
