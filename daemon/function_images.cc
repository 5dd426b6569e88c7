// The images that functions start from: noted when they are made, made anew, brought back, removed.
#include <unistd.h>

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/function_instances.h"
#include "daemon/function_layers.h"
#include "daemon/functions.h"

namespace rekindle::daemon {

DependencyRenewal::Work Functions::RenewalWork() {
  DependencyRenewal::Work work;
  work.in_use = [this] {
    std::set<std::string> references;
    for (const functions::FunctionRecord& record : catalog_->List()) {
      if (record.trouble.ok() && !record.images.dependency_image.empty())
        references.insert(record.images.dependency_image);
    }
    return references;
  };
  work.change = [this](const std::string& reference) -> std::optional<std::string> {
    const auto image = dependencies_.Find(reference);
    // Not where the whole store is not there.
    if (absl::IsNotFound(image.status()) && node_.CheckStoreIsThere().ok())
      return absl::StrCat("it is missing: ", image.status().message());
    return image.ok() ? dependencies_.Change(*image) : std::nullopt;
  };
  work.renew = [this](const std::string& reference, const Cancellation& cancel) -> absl::Status {
    const auto image = dependencies_.Find(reference);
    if (absl::IsNotFound(image.status())) return BringBackDependencies(reference, cancel);
    RK_RETURN_IF_ERROR(image.status());
    if (!image->is_shared()) return RenewWithLayers(*image, cancel);
    return dependencies_
        .Build(
            image->runtime, image->modules, /*rebuild=*/true, ::geteuid(), [](const char* /*phase*/) {},
            &cancel)
        .status();
  };
  work.without = [this] {
    std::map<DependencyRenewal::Function, DependencyRenewal::Lack> without;
    for (const functions::FunctionRecord& record : catalog_->List()) {
      if (!record.trouble.ok() || !record.spec.starts_from_images()) continue;
      if (record.images.dependency_image.empty()) {
        without[{record.name(), record.revision}] = {"dependency image", "starts from nothing",
                                                     record.owner.uid};
      } else if (!record.images.not_loaded.empty()) {
        without[{record.name(), record.revision}] = {"image with what it needs of its layers",
                                                     "loads that by itself", record.owner.uid};
      }
    }
    return without;
  };
  work.make = [this](const DependencyRenewal::Function& function,
                     const Cancellation& cancel) -> absl::StatusOr<bool> {
    const auto record = catalog_->Find(function.first);
    // It was removed or deployed again meanwhile, or somebody else has seen to it.
    if (!record.ok() || record->revision != function.second) return false;
    const bool has_none = record->images.dependency_image.empty();
    if (!has_none && record->images.not_loaded.empty()) return false;
    RK_RETURN_IF_ERROR(node_.CheckStoreIsThere());
    if (!has_none) return LoadLayersAhead(*record, cancel);
    RK_RETURN_IF_ERROR(BringBackDependenciesOf(*record, cancel));
    return true;
  };
  return work;
}

std::string Functions::WhyNot(const functions::FunctionRecord& record) const {
  absl::MutexLock lock(&mutex_);
  const auto why = without_image_.find(record.name());
  return why == without_image_.end() || why->second.first != record.revision ? std::string()
                                                                             : why->second.second;
}

void Functions::NoteWhyNot(const functions::FunctionRecord& record, absl::string_view why) {
  absl::MutexLock lock(&mutex_);
  const auto known = without_image_.find(record.name());
  if (known != without_image_.end() && known->second.first > record.revision) return;
  without_image_[record.name()] = {record.revision, std::string(why)};
}

std::string Functions::WhyNoDependencyImage(const functions::FunctionRecord& record) const {
  const std::string why = WhyNot(record);
  return absl::StrCat(
      "it has no dependency image, which could not be built when it was deployed, and starts from nothing; "
      "that is tried again in the background",
      why.empty() ? "" : ": ", why);
}

std::string Functions::WhyLayersAreNotLoaded(const functions::FunctionRecord& record) const {
  const std::string why = WhyNot(record);
  return absl::StrCat("what it needs of its layers (", absl::StrJoin(record.images.not_loaded, ", "),
                      ") could not be loaded ahead, and each instance loads it by itself; that is tried "
                      "again in the background",
                      why.empty() ? "" : ": ", why);
}

// What the image had loaded went with it; what its functions need is in their records.
absl::Status Functions::BringBackDependencies(const std::string& reference, const Cancellation& cancel) {
  std::vector<std::string> problems;
  for (const functions::FunctionRecord& record : catalog_->List()) {
    if (!record.trouble.ok() || record.images.dependency_image != reference) continue;
    const absl::Status status = BringBackDependenciesOf(record, cancel);
    if (cancel.cancelled()) return status;
    // Of its own: a module that is not installed any more, or its owner has as many images as he may.
    if (!status.ok())
      problems.push_back(absl::StrCat("for function '", record.name(), "': ", status.message()));
  }
  if (problems.empty()) return absl::OkStatus();
  const size_t more = problems.size() - 1;
  return absl::UnavailableError(
      absl::StrCat(problems.front(), more > 0 ? absl::StrCat(" (and for ", more, " more functions)") : ""));
}

absl::Status Functions::BringBackDependenciesOf(const functions::FunctionRecord& record,
                                                const Cancellation& cancel) {
  const std::string gone = record.images.dependency_image;
  const OwnersAtWork::Work work(with_layers_, record.owner.uid);
  functions::FunctionImages images = record.images;
  std::vector<std::string> warnings;
  RK_ASSIGN_OR_RETURN(const DependencyImages::Found found,
                      CoverFor(
                          record, &images, [](const char* /*phase*/) {}, &cancel, &warnings));
  if (gone.empty()) {
    for (const std::string& warning : warnings)
      Log(LogLevel::kWarning, absl::StrCat("function '", record.name(), "': ", warning));
  } else {
    // As it was deployed, or later.
    if (!warnings.empty()) return absl::UnavailableError(warnings.front());
    instances_->DropTemplate("", 0, gone);
    scheduler_->LostTemplate(gone);
    instances_->DropImage(record.name(), record.revision);  // it was made of the one that has gone
  }
  const auto noted =
      catalog_->ChangeImages(record.name(), record.revision, [&](functions::FunctionImages* now) {
        if (gone.empty()) {  // what of its layers it has
          now->dependencies = images.dependencies;
          now->of_layers = images.of_layers;
          now->not_loaded = images.not_loaded;
        }
        now->dependency_image = found.image.info.reference;
        return true;
      });
  if (absl::IsAborted(noted.status()) || absl::IsNotFound(noted.status())) return absl::OkStatus();
  RK_RETURN_IF_ERROR(noted.status());
  ScheduleIfPresent(*noted).IgnoreError();
  return absl::OkStatus();
}

absl::StatusOr<bool> Functions::LoadLayersAhead(const functions::FunctionRecord& record,
                                                const Cancellation& cancel) {
  const OwnersAtWork::Work work(with_layers_, record.owner.uid);
  functions::FunctionImages images = WithNotLoaded(record.images);
  std::vector<std::string> warnings;
  RK_ASSIGN_OR_RETURN(const DependencyImages::Found found,
                      CoverFor(
                          record, &images, [](const char* /*phase*/) {}, &cancel, &warnings));
  const bool may_pass = !images.not_loaded.empty();
  const std::string why = warnings.empty() ? "" : warnings.front();
  bool is_present = false;
  const auto noted =
      catalog_->ChangeImages(record.name(), record.revision, [&](functions::FunctionImages* now) {
        is_present = now->dependency_image == record.images.dependency_image;
        if (!is_present || may_pass) return false;
        // It was made of the one before.
        if (found.image.info.reference != now->dependency_image) now->function_image.clear();
        now->dependencies = images.dependencies;
        now->of_layers = images.of_layers;
        now->not_loaded = images.not_loaded;
        now->dependency_image = found.image.info.reference;
        return true;
      });
  if (absl::IsAborted(noted.status()) || absl::IsNotFound(noted.status())) return false;
  RK_RETURN_IF_ERROR(noted.status());
  if (!is_present) return false;
  ScheduleIfPresent(*noted).IgnoreError();
  if (may_pass) return absl::UnavailableError(why);
  if (why.empty()) return true;
  Log(LogLevel::kWarning, absl::StrCat("function '", record.name(), "': ", why));
  return false;
}

// A daemon that was killed while a function was deployed again or removed leaves its image.
void Functions::RemoveLeftImages() {
  std::set<std::string> wanted;
  for (const functions::FunctionRecord& record : catalog_->List()) {
    if (!record.trouble.ok()) return;  // nobody knows which are its
    wanted.insert(record.images.function_image);
  }
  auto store = node_.OpenStore(Node::Access::kWrite);
  if (!store.ok()) return;
  auto images = (*store)->List();
  if (!images.ok()) return;
  for (const store::ImageInfo& image : *images) {
    if (!image.labels.contains(kFunctionLabel) || !absl::StartsWith(image.reference, kFunctionImages) ||
        wanted.contains(image.reference)) {
      continue;
    }
    absl::Status removed = (*store)->RemoveExactly(image);
    Log(LogLevel::kInfo, absl::StrCat("image ", image.reference, " of a function that is no more: ",
                                      removed.ok() ? "removed" : std::string(removed.message())));
  }
}

void Functions::DependencyImageMade(const std::string& reference) {
  renewal_->ImageMade();
  instances_->DropTemplate("", 0, reference);
  scheduler_->LostTemplate(reference);
  for (const functions::FunctionRecord& record : catalog_->List()) {
    if (!record.trouble.ok() || record.images.dependency_image != reference) continue;
    // Its own image is one of the old libraries.
    instances_->DropImage(record.name(), record.revision);
    if (auto now = catalog_->Find(record.name()); now.ok()) ScheduleIfPresent(*now).IgnoreError();
  }
  if (auto store = node_.OpenStore(Node::Access::kRead); store.ok())
    node_.clones().ForgetRemovedImages(**store);
}

absl::Status Functions::RemoveDependencies(const store::ImageInfo& image) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kWrite));
  RK_RETURN_IF_ERROR(store->RemoveExactly(image));
  // Without the image no new one is put up.
  instances_->DropTemplate("", 0, image.reference);
  scheduler_->LostTemplate(image.reference);
  node_.clones().ForgetRemovedImages(*store);
  return absl::OkStatus();
}

std::string LoadFailure(const absl::Status& why) {
  constexpr size_t kMostBytes = 2000;
  return ToUtf8(why.message().substr(0, kMostBytes));
}

std::string WhyAlone(const functions::FunctionSpec& spec) {
  const bool host = spec.network == v1::CloneOptions::HOST;
  return absl::StrCat("what ", host ? "listens on a port or " : "",
                      "locks a file as it is loaded can be loaded once: --max-instances 1",
                      host ? ", or --net own, where each instance has ports of its own" : "");
}

bool IsInAnothersWay(absl::string_view why) {
  // As Node.js and Python have it, and the C library, which most others ask.
  for (const char* text : {"EADDRINUSE", "EAGAIN", "Address already in use", "address already in use",
                           "Resource temporarily unavailable"}) {
    if (absl::StrContains(why, text)) return true;
  }
  return false;
}

std::string Functions::OnlyAlone(const functions::FunctionRecord& record) const {
  absl::MutexLock lock(&mutex_);
  const auto found = only_alone_.find(record.name());
  return found != only_alone_.end() && found->second.first == record.revision ? found->second.second : "";
}

uint32_t Functions::Serving(const std::string& name) const {
  const auto numbers = scheduler_->Numbers(name);
  return numbers.ok() ? numbers->busy + numbers->idle : 0;
}

void Functions::NoteLoaded(const std::string& name, uint64_t revision, const absl::Status& loaded) {
  if (loaded.ok()) {
    ForgetOnlyAlone(name, revision);
  } else if (Serving(name) > 0) {
    if (!IsInAnothersWay(loaded.message())) return;
    absl::MutexLock lock(&mutex_);
    const auto known = only_alone_.find(name);
    if (known == only_alone_.end() || known->second.first <= revision)
      only_alone_[name] = {revision, LoadFailure(loaded)};
    return;
  } else if (absl::IsFailedPrecondition(loaded)) {
    return;
  }
  const auto record = catalog_->Find(name);
  // Nearly always, and without a wait for the disk. What was found out when it was deployed says more.
  if (!record.ok() || record->images.load_failure.empty() == loaded.ok()) return;
  if (!loaded.ok() && !record->images.function_image.empty()) return;
  const std::string failure =
      loaded.ok() ? ""
                  : absl::StrCat(LoadFailure(loaded), "; see what it writes with: rekindle fn logs ", name);
  NoteImages(name, revision, [&](functions::FunctionImages* images) { images->load_failure = failure; });
}

void Functions::ImageMade(const std::string& name, uint64_t revision, const std::string& reference) {
  NoteImages(name, revision, [&](functions::FunctionImages* images) {
    images->function_image = reference;
    // It was loaded for that.
    if (!reference.empty()) images->load_failure.clear();
  });
  if (!reference.empty()) ForgetOnlyAlone(name, revision);
}

void Functions::ForgetOnlyAlone(const std::string& name, uint64_t revision) {
  absl::MutexLock lock(&mutex_);
  const auto known = only_alone_.find(name);
  if (known != only_alone_.end() && known->second.first <= revision) only_alone_.erase(known);
}

void Functions::NoteImages(const std::string& name, uint64_t revision,
                           const std::function<void(functions::FunctionImages*)>& change) {
  const auto noted = catalog_->ChangeImages(name, revision, [&](functions::FunctionImages* images) {
    change(images);
    return true;
  });
  if (!noted.ok() && !absl::IsAborted(noted.status()) && !absl::IsNotFound(noted.status()))
    Log(LogLevel::kWarning, noted.status().message());
}

}  // namespace rekindle::daemon
