#include "daemon/functions.h"

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/steady_timer.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/code_room.h"
#include "daemon/early_variables.h"
#include "daemon/function_layers.h"
#include "daemon/function_process.h"
#include "daemon/function_runtime.h"
#include "daemon/http_callers.h"
#include "daemon/instance_record.h"
#include "daemon/owner_program.h"
#include "functions/request_id.h"
#include "restore/cgroup.h"
#include "restore/hook_message.h"

namespace rekindle::daemon {
namespace {

using functions::RuntimeKind;

// Of what is free when the daemon starts: for instances, templates and what else is kept of functions.
constexpr double kShareOfMemory = 0.6;
constexpr absl::Duration kUsualLongestDiscovery = absl::Minutes(2);
constexpr absl::Duration kTidyEvery = absl::Seconds(1);
constexpr int kTidiedPerGroups = 10;
// Of what the program that finds imports says.
constexpr size_t kMostReported = size_t{16} << 20;
constexpr size_t kShownOfOutput = 300;
// The program for Python keeps to the time by itself.
constexpr absl::Duration kDiscoveryGrace = absl::Seconds(10);
// Over TCP, from when on one counts whom the user database has put into a group, or taken out.
constexpr absl::Duration kGroupsKnownFor = absl::Seconds(10);

absl::Duration LongestDiscovery(const functions::FunctionRecord& record) {
  return std::max(kUsualLongestDiscovery, absl::Milliseconds(record.spec.start_timeout_ms));
}

std::string NoLimits(absl::string_view who, const absl::Status& why) {
  return absl::StrCat(who, " no limits of memory, CPU and processes on this machine: ", why.message());
}

absl::Status Ending() { return absl::UnavailableError("the daemon is ending"); }

functions::InvokeResult ToResult(const functions::CallResult& result) {
  functions::InvokeResult out;
  out.payload = result.payload;
  if (!result.content_type.empty()) out.content_type = result.content_type;
  out.function_error = result.function_error;
  out.log_tail = result.log_tail;
  return out;
}

// Loads a function's handler, and says what it imports.
absl::StatusOr<std::vector<std::string>> DiscoveryCommand(const functions::FunctionRecord& record) {
  RK_ASSIGN_OR_RETURN(const std::vector<std::string> runtime, RuntimeCommand(record.spec.runtime, ""));
  if (record.spec.runtime.kind == RuntimeKind::kNode) {
    RK_ASSIGN_OR_RETURN(std::string program, FindRuntimeFile("node/discover_imports.js"));
    return std::vector<std::string>{runtime[0], std::move(program)};
  }
  RK_ASSIGN_OR_RETURN(std::string program, FindRuntimeFile("python/discover_imports.py"));
  std::vector<std::string> command = {
      runtime[0],     std::move(program),
      "--code",       record.folder->code(),
      "--handler",    record.spec.handler,
      "--time-limit", absl::StrCat(absl::ToInt64Seconds(LongestDiscovery(record)))};
  // Later ones hide earlier ones.
  const std::vector<std::string> layers = LayersOf(record);
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer)
    command.insert(command.end(), {"--opt", *layer});
  return command;
}

// What it was to have loaded before it is started, also what could not be.
functions::FunctionImages WithNotLoaded(functions::FunctionImages images) {
  for (const std::string& module : std::exchange(images.not_loaded, {})) {
    images.dependencies.push_back(module);
    images.of_layers.push_back(module);
  }
  for (std::vector<std::string>* modules : {&images.dependencies, &images.of_layers}) {
    std::sort(modules->begin(), modules->end());
    modules->erase(std::unique(modules->begin(), modules->end()), modules->end());
  }
  return images;
}

// Without what its images say.
functions::ScheduledFunction AsSpecified(const functions::FunctionRecord& record) {
  functions::ScheduledFunction function;
  function.name = record.name();
  function.revision = record.revision;
  function.owner = record.owner.uid;
  function.memory_bytes = record.spec.memory_bytes;
  function.timeout = absl::Milliseconds(record.spec.timeout_ms);
  function.longest_start = absl::Milliseconds(record.spec.start_timeout_ms);
  function.provisioned = record.spec.provisioned;
  function.most_instances = record.spec.max_instances;
  return function;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Functions>> Functions::Start(Node& node) {
  std::shared_ptr<Functions> functions(new Functions(node));
  RK_RETURN_IF_ERROR(functions->Begin());
  return functions;
}

absl::Status Functions::Begin() {
  RK_RETURN_IF_ERROR(node_.MakeRuntimeDirectory());
  // The store has to be there before something is put into its folder.
  RK_RETURN_IF_ERROR(node_.OpenStore(Node::Access::kCreate).status());
  functions::FunctionCatalog::Options catalog;
  catalog.store = node_.options().store;
  RK_ASSIGN_OR_RETURN(catalog_, functions::FunctionCatalog::Open(std::move(catalog)));
  RK_ASSIGN_OR_RETURN(logs_, functions::FunctionLogs::Open(node_.options().log_directory));
  const std::string left =
      InstanceRecords(node_.options().runtime_directory, node_.options().store);  // by a daemon that died
  EndLeftInstances(left);
  RemoveTree(left).IgnoreError();
  functions::SchedulerOptions options;
  threads_ = std::make_unique<functions::HttpThreads>(options.threads.http);
  instances_ = std::make_unique<FunctionInstances>(
      node_, *logs_, damaged_, refused_,
      // On the scheduler's threads, which end before this.
      [this](const std::string& name, uint64_t revision, const std::string& image) {
        ImageMade(name, revision, image);
      },
      [this] { renewal_->LookSoon(); });
  options.keep_alive.memory_bytes = node_.options().function_memory_bytes;
  if (options.keep_alive.memory_bytes == 0) {
    RK_ASSIGN_OR_RETURN(const uint64_t available, restore::Cgroup::AvailableMemory());
    options.keep_alive.memory_bytes = static_cast<uint64_t>(static_cast<double>(available) * kShareOfMemory);
  }
  if (const absl::Status& usable = FunctionInstances::LimitsUsable(); !usable.ok())
    Log(LogLevel::kWarning, NoLimits("functions have", usable));
  scheduler_ = std::make_unique<functions::Scheduler>(options, *instances_, *threads_);
  events_ = std::make_unique<FunctionEvents>(*catalog_, *scheduler_, *logs_, *threads_);
  renewal_ = std::make_unique<DependencyRenewal>(RenewalWork());
  trim_ = std::make_unique<boost::asio::steady_timer>(*threads_->context());
  PlanTidying();
  RemoveLeftImages();
  RemoveAllUnusedLayerImages();
  layers_tidier_ = std::thread(&Functions::TidyLayersNowAndThen, this);
  for (const functions::FunctionRecord& record : catalog_->List()) {
    if (!record.trouble.ok()) continue;
    if (record.images.dependency_image.empty() && record.spec.starts_from_images()) {
      Log(LogLevel::kWarning, absl::StrCat("function '", record.name(), "': ", WhyNoDependencyImage(record)));
    }
    absl::MutexLock lock(&scheduling_);
    Schedule(record);
  }
  return absl::OkStatus();
}

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
        without[{record.name(), record.revision}] = {"dependency image", "starts from nothing"};
      } else if (!record.images.not_loaded.empty()) {
        without[{record.name(), record.revision}] = {"image with what it needs of its layers",
                                                     "loads that by itself"};
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
  auto now = catalog_->Find(record.name());
  if (!now.ok() || now->revision != record.revision) return absl::OkStatus();
  if (gone.empty()) {  // what of its layers it has
    now->images.dependencies = images.dependencies;
    now->images.of_layers = images.of_layers;
    now->images.not_loaded = images.not_loaded;
  }
  now->images.dependency_image = found.image.info.reference;
  const absl::Status noted = catalog_->SetImages(now->name(), now->revision, now->images);
  if (!absl::IsAborted(noted)) RK_RETURN_IF_ERROR(noted);
  ScheduleIfPresent(*now).IgnoreError();
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
  const auto is_present = [&](const absl::StatusOr<functions::FunctionRecord>& now) {
    return now.ok() && now->revision == record.revision &&
           now->images.dependency_image == record.images.dependency_image;
  };
  absl::StatusOr<functions::FunctionRecord> now = catalog_->Find(record.name());
  if (!is_present(now)) return false;
  if (!may_pass) {
    const bool is_another = found.image.info.reference != record.images.dependency_image;
    if (is_another) {
      instances_->DropImage(record.name(), record.revision);  // it was made of the one before
      now = catalog_->Find(record.name());
      if (!is_present(now)) return false;
    }
    images.function_image = now->images.function_image;
    images.dependency_image = found.image.info.reference;
    const absl::Status noted = catalog_->SetImages(now->name(), now->revision, images);
    if (absl::IsAborted(noted)) return false;
    RK_RETURN_IF_ERROR(noted);
    now->images = images;
  }
  ScheduleIfPresent(*now).IgnoreError();
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

// An invocation that goes on for long writes to its log without asking; and what a daemon that was killed has
// left may have been in use when this one began.
void Functions::PlanTidying() {
  trim_->expires_after(absl::ToChronoNanoseconds(kTidyEvery));
  trim_->async_wait([end = lifeline_.end()](const boost::system::error_code& error) {
    auto self = end.Hold();
    if (error || !self) return;
    self->logs_->Tidy();
    // In the beginning what a killed daemon has left may not have ended yet.
    if (++self->tidied_ < kTidiedPerGroups || self->tidied_ % kTidiedPerGroups == 0)
      restore::Cgroup::RemoveLeftovers();
    self->ScheduleReadAgain();
    self->PlanTidying();
  });
}

void Functions::ScheduleReadAgain() {
  for (const functions::FunctionRecord& record : catalog_->ReadAgain()) {
    Log(LogLevel::kInfo, absl::StrCat("function '", record.name(), "' can be read again"));
    ScheduleIfPresent(record).IgnoreError();
  }
}

Functions::~Functions() {
  if (renewal_) renewal_->Stop();
  ending_ = true;
  tidier_ends_.Notify();
  if (layers_tidier_.joinable()) layers_tidier_.join();
  lifeline_.Cut();
  if (trim_) trim_->cancel();
  events_.reset();
  scheduler_.reset();  // before the front: callers hear of it
  front_.reset();
  // Nobody may be there to do it later.
  restore::Cgroup::RemoveLeftovers();
}

void Functions::TakeNoMore() {
  if (front_) front_->TakeNoMore();
  in_work_->TakeNoMore();
  events_->FinishUp();
}

void Functions::AwaitCalls(const Deadline& deadline) {
  in_work_->Await(deadline);
  if (front_) front_->AwaitAnswers(deadline);
}

void Functions::Schedule(const functions::FunctionRecord& record) {
  functions::ScheduledFunction function = AsSpecified(record);
  absl::StatusOr<DependencyImage> dependency = absl::NotFoundError("none");
  if (!record.images.dependency_image.empty())
    dependency = dependencies_.Find(record.images.dependency_image);
  if (dependency.ok() && !dependency->MayBeUsedBy(record.owner))
    dependency = absl::NotFoundError("it is another user's, or one of before its owner was of other groups");
  if (dependency.ok()) {
    function.dependency_image = dependency->info.reference;
    function.dependency_bytes = dependency->resident_bytes;
    function.may_have_image = true;
    function.cold_seconds = dependency->build_seconds;
    if (!record.images.not_loaded.empty()) function.lacks = WhyLayersAreNotLoaded(record);
  } else if (!record.images.dependency_image.empty()) {
    function.only_cold = absl::StrCat(
        "its dependency image '", record.images.dependency_image,
        "' is missing; it starts from nothing until that has been built again, which is done in the "
        "background: ",
        dependency.status().message());
    Log(LogLevel::kWarning, absl::StrCat("function '", record.name(), "': ", function.only_cold));
  } else if (record.spec.starts_from_images()) {
    function.only_cold = WhyNoDependencyImage(record);
  }
  const bool has_image = instances_->Add(record, dependency.ok() ? &dependency->info : nullptr);
  function.has_image = has_image && dependency.ok();
  uint64_t old = 0;
  {
    absl::MutexLock lock(&mutex_);
    old = std::exchange(scheduled_[record.name()], record.revision);
  }
  scheduler_->Put(function);
  if (old != 0 && old != record.revision) instances_->Remove(record.name(), old, /*await_image=*/false);
}

absl::StatusOr<Functions::Imports> Functions::Discover(const functions::FunctionRecord& record,
                                                       const Cancellation* cancel) {
  OwnerProgram program;
  program.name = "discovery";
  RK_ASSIGN_OR_RETURN(program.command, DiscoveryCommand(record));
  InstanceIdentity identity;
  identity.instance = program.name;
  program.environment = InstanceEnvironment(record, identity);
  program.environment.merge(BaseEnvironment());
  program.environment.erase("NODE_OPTIONS");  // in instances it comes too late to have an effect
  program.working_directory = record.folder->code();
  program.owner = record.owner;
  program.temporary = instances_->TemporaryOf(record);
  program.limits = FunctionInstances::LimitsOf(record.spec);
  program.longest = LongestDiscovery(record) + kDiscoveryGrace;
  program.most_output = kMostReported;
  const absl::StatusOr<OwnerProgramEnd> end = RunOwnerProgram(node_, program, cancel);
  if (!end.ok())
    return Annotate(end.status(), absl::StrCat("finding out what function '", record.name(), "' imports"));
  const std::string& text = end->output;
  // What the code has written comes first.
  const size_t line = text.rfind("\n{");
  const size_t begin = line != std::string::npos ? line : text.find('{');
  const nlohmann::json result =
      nlohmann::json::parse(begin == std::string::npos ? text : text.substr(begin), nullptr, false);
  if (!result.is_object() && end->late) {
    return absl::FailedPreconditionError(absl::StrCat("Sandbox.Timedout: it was not loaded within ",
                                                      absl::FormatDuration(LongestDiscovery(record))));
  }
  if (!result.is_object()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Runtime.ExitError: its process ended while it was loaded: ", end->exit ? end->exit->ToString() : "",
        ": ", text.substr(text.size() - std::min(text.size(), kShownOfOutput))));
  }
  if (!restore::FlagOf(result, "ok")) {
    const auto error = result.find("error");
    if (error == result.end()) return absl::FailedPreconditionError("Runtime.Unknown");
    const std::string written = restore::TextOf(result, "output");
    absl::string_view shown = absl::StripAsciiWhitespace(written);
    shown = shown.substr(shown.size() - std::min(shown.size(), kShownOfOutput));
    return absl::FailedPreconditionError(absl::StrCat(restore::TextOf(*error, "errorType", "Runtime.Unknown"),
                                                      ": ", restore::TextOf(*error, "errorMessage"),
                                                      shown.empty() ? "" : ". It wrote: ", shown));
  }
  Imports imports{restore::TextsOf(result, "imports"), restore::TextsOf(result, "layer_imports")};
  // They are loaded as our own user, and the code may have written all of this.
  for (std::vector<std::string>* names : {&imports.of_machine, &imports.of_layers}) {
    std::erase_if(*names, [&](const std::string& name) {
      return !functions::CheckDependency(record.spec.runtime.kind, name).ok();
    });
  }
  return imports;
}

absl::StatusOr<functions::FunctionImages> Functions::FindImages(
    const functions::FunctionRecord& record, bool replaces_one,
    const std::function<void(const char* phase)>& progress, const Cancellation* cancel,
    std::vector<std::string>* warnings) {
  functions::FunctionImages images;
  images.dependencies = record.spec.dependencies;
  images.of_layers = record.images.of_layers;
  for (std::string& module :
       ModulesOfLayers(record.spec.runtime, record.owner, LayersOf(record), images.dependencies))
    images.of_layers.push_back(std::move(module));
  if (record.spec.discover_dependencies) {
    progress("discover");
    auto found = Discover(record, cancel);
    if (absl::IsCancelled(found.status())) return found.status();
    if (found.ok()) {
      images.of_layers.insert(images.of_layers.end(), found->of_layers.begin(), found->of_layers.end());
      for (const auto& names : {found->of_machine, found->of_layers})
        images.dependencies.insert(images.dependencies.end(), names.begin(), names.end());
    } else if (replaces_one && absl::IsFailedPrecondition(found.status())) {
      return absl::FailedPreconditionError(
          absl::StrCat("its handler could not be loaded, so the revision that is deployed stays: ",
                       found.status().message(), ". Mend it, or deploy it all the same with --force"));
    } else {
      warnings->push_back(absl::StrCat("its handler could not be loaded, and invoking it will fail: ",
                                       found.status().message()));
    }
  }
  for (std::vector<std::string>* names : {&images.dependencies, &images.of_layers}) {
    std::sort(names->begin(), names->end());
    names->erase(std::unique(names->begin(), names->end()), names->end());
  }
  if (record.spec.starts_from_images()) {
    const functions::FunctionImages wanted = images;
    auto covered = CoverFor(record, &images, progress, cancel, warnings);
    if (absl::IsCancelled(covered.status())) return covered.status();
    if (covered.ok()) {
      images.dependency_image = covered->image.info.reference;
      for (std::string& warning : WarnOfEarlyVariables(record.spec, images.dependencies))
        warnings->push_back(std::move(warning));
    } else if (CanNotLoadOneOf(record.spec.dependencies, covered.status())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--deps: ", covered.status().message(),
          ". Check the spelling, install it, or leave it out: what the code folder has is loaded with the "
          "function"));
    } else {
      images = wanted;  // for the next attempt
      warnings->push_back(
          absl::StrCat("it has no dependency image and starts from nothing until it can be built, which is "
                       "tried again in the background: ",
                       covered.status().message()));
      NoteWhyNot(record, covered.status().message());
    }
  }
  return images;
}

absl::Status Functions::ScheduleIfPresent(const functions::FunctionRecord& record) {
  absl::MutexLock lock(&scheduling_);
  auto present = catalog_->Find(record.name());
  if (present.ok() && present->revision == record.revision) {
    Schedule(*present);  // its settings may be other ones by now
    return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat("function '", record.name(),
                                         "' was deployed again, or removed, before this deployment had "
                                         "ended, which has no effect"));
}

absl::StatusOr<Functions::DeployResult> Functions::Deploy(
    const Caller& caller, const functions::FunctionSpec& spec, bool replace, bool force,
    const std::function<void(const char* phase, uint64_t bytes)>& progress, const Cancellation* cancel) {
  if (caller.kind == Caller::Kind::kRemote && !caller.admin_certificate) {
    return absl::PermissionDeniedError(
        "functions are deployed on the node itself, or with an administrator's certificate: their code is a "
        "folder of "
        "the node");
  }
  functions::DeployOptions options;
  options.replace = replace;
  return DeployAs({caller.uid, caller.gid, caller.groups}, spec, force, std::move(options), progress, cancel);
}

absl::StatusOr<Functions::DeployResult> Functions::Set(
    const functions::FunctionRecord& present, const functions::FunctionSpec& spec, functions::NewParts parts,
    bool force, const std::function<void(const char* phase, uint64_t bytes)>& progress,
    const Cancellation* cancel) {
  functions::DeployOptions options;
  options.replace = true;
  options.code_of = present;
  options.new_parts = parts;
  return DeployAs(present.owner, spec, force, std::move(options), progress, cancel);
}

absl::StatusOr<Functions::DeployResult> Functions::DeployAs(
    const Owner& owner, const functions::FunctionSpec& spec, bool force, functions::DeployOptions options,
    const std::function<void(const char* phase, uint64_t bytes)>& progress, const Cancellation* cancel) {
  const functions::FunctionRecord* const code_of = options.code_of ? &*options.code_of : nullptr;
  const bool same_code = code_of != nullptr && !options.new_parts.code;
  RK_RETURN_IF_ERROR(RuntimeCommand(spec.runtime, same_code ? code_of->folder->code() : spec.code).status());
  functions::ScheduledFunction wanted;
  wanted.name = spec.name;
  wanted.owner = owner.uid;
  wanted.memory_bytes = spec.memory_bytes;
  wanted.provisioned = spec.provisioned;
  const OwnersAtWork::Work work(with_layers_, owner.uid);
  // Until it is scheduled: another deployment must not count on the same room.
  RK_ASSIGN_OR_RETURN(const functions::Scheduler::Reservation room, scheduler_->ReserveProvisioned(wanted));
  DeployResult result;
  if (const absl::Status& usable = FunctionInstances::LimitsUsable(); !usable.ok())
    result.warnings.push_back(NoLimits("it has", usable));
  progress("copy", 0);
  options.progress = [&progress](uint64_t bytes) { progress("copy", bytes); };
  RK_ASSIGN_OR_RETURN(const std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kRead));
  const auto code_room = [&] {
    return CodeRoom::Of(*store, node_.options().store, catalog_->List(), catalog_->layers().Sizes(),
                        spec.name, owner.uid);
  };
  RK_ASSIGN_OR_RETURN(const CodeRoom room_now, code_room());
  options.may_take = [&room_now](uint64_t bytes, bool all) { return room_now.Check(bytes, all); };
  options.cancelled = cancel != nullptr ? &cancel->cancelled() : nullptr;
  RK_ASSIGN_OR_RETURN(options.python, PythonVersion(spec.runtime));
  options.prepare_layer = CompileLayers(spec.runtime, owner, progress, cancel);
  const auto find_images = [&](functions::FunctionRecord record, bool replaces_one) {
    // The same code imports the same, unless it looks at variables.
    if (same_code && code_of->spec.environment == spec.environment && record.layers == code_of->layers &&
        record.spec.LayerFolders() == code_of->spec.LayerFolders() &&
        !code_of->images.dependency_image.empty()) {
      const functions::FunctionImages known = WithNotLoaded(code_of->images);
      record.spec.discover_dependencies = false;
      record.spec.dependencies = known.dependencies;
      record.images.of_layers = known.of_layers;
    }
    return FindImages(
        record, replaces_one, [&progress](const char* phase) { progress(phase, 0); }, cancel,
        &result.warnings);
  };
  options.prepare = [&](const functions::FunctionRecord& staged, functions::FunctionImages* images) {
    RK_ASSIGN_OR_RETURN(*images, find_images(staged, !force && catalog_->Find(spec.name).ok()));
    // Others may have been deployed meanwhile.
    RK_ASSIGN_OR_RETURN(const CodeRoom left, code_room());
    return left.CheckRevision(staged);
  };
  absl::StatusOr<functions::Deployed> done = catalog_->Deploy(spec, owner, options);
  if (absl::IsNotFound(catalog_->Find(spec.name).status())) {
    // Nobody asks why one that is not there has no image.
    absl::MutexLock lock(&mutex_);
    without_image_.erase(spec.name);
  }
  RK_ASSIGN_OR_RETURN(functions::Deployed deployed, std::move(done));
  result.record = std::move(deployed.record);
  result.unchanged = deployed.unchanged;
  if (deployed.adjusted) {
    absl::MutexLock lock(&scheduling_);
    auto present = catalog_->Find(spec.name);
    if (present.ok()) scheduler_->Adjust(AsSpecified(*present));
  }
  if (result.unchanged || deployed.adjusted) {
    const std::string& image = result.record.images.dependency_image;
    const bool has_image = !image.empty() && dependencies_.Find(image).ok();
    if (!spec.starts_from_images() || has_image) return result;
    RK_ASSIGN_OR_RETURN(result.record.images, find_images(result.record, /*replaces_one=*/false));
    RK_RETURN_IF_ERROR(
        catalog_->SetImages(result.record.name(), result.record.revision, result.record.images));
  }
  if (absl::Status put = ScheduleIfPresent(result.record); !put.ok())
    result.warnings.push_back(std::string(put.message()));
  renewal_->LookSoon();
  return result;
}

absl::StatusOr<functions::FunctionRecord> Functions::Find(const Caller& caller, const std::string& name,
                                                          const char* verb) const {
  RK_ASSIGN_OR_RETURN(functions::FunctionRecord record, catalog_->Find(name));
  RK_RETURN_IF_ERROR(node_.policy().MayUseFunction(caller, record.owner.uid, verb, name));
  return record;
}

void Functions::Call(const Caller& caller, functions::Call call, functions::Scheduler::Done done) {
  auto record = Find(caller, call.function, "invoke");
  if (!record.ok()) return done(record.status());
  std::shared_ptr<void> work = in_work_->Begin();
  if (!work) return done(Ending());
  if (call.request_id.empty()) call.request_id = functions::NewRequestId();
  scheduler_->Invoke(std::move(call),
                     [work = std::move(work), done = std::move(done)](
                         absl::StatusOr<functions::CallResult> result) { done(std::move(result)); });
}

Functions::Functions(Node& node)
    : node_(node), dependencies_(node, damaged_, refused_, [this](const std::string& reference) {
        DependencyImageMade(reference);
      }) {}

absl::Status Functions::CallLater(const Caller& caller, functions::Call call) {
  RK_ASSIGN_OR_RETURN(const functions::FunctionRecord record, Find(caller, call.function, "invoke"));
  std::shared_ptr<void> work = in_work_->Begin();
  if (!work) return Ending();
  return events_->Accept(record, std::move(call), std::move(work));
}

Functions::Refusals Functions::refusals() const {
  Refusals refused;
  if (const functions::InvokeApi* front = serving_.load()) refused.http = front->refusals();
  const FunctionEvents::Refusals events = events_->refusals();
  refused.events = events.all;
  refused.events_of_one = events.of_one;
  return refused;
}

std::vector<functions::FunctionRecord> Functions::Records(const Caller& caller) const {
  std::vector<functions::FunctionRecord> seen;
  for (functions::FunctionRecord& record : catalog_->List()) {
    if (node_.policy().MayUse(caller, record.owner.uid)) seen.push_back(std::move(record));
  }
  return seen;
}

absl::Status Functions::Remove(const Caller& caller, const std::string& name) {
  auto record = Find(caller, name, "remove");
  // A damaged one can be removed by root alone: nobody knows whose it is.
  if (!record.ok() && !(absl::IsDataLoss(record.status()) && node_.policy().IsAdmin(caller)))
    return record.status();
  uint64_t revision = 0;
  {
    absl::MutexLock scheduling(&scheduling_);
    // First: where this fails the function goes on.
    RK_RETURN_IF_ERROR(catalog_->Remove(name));
    scheduler_->Remove(name);
    absl::MutexLock lock(&mutex_);
    if (auto scheduled = scheduled_.extract(name)) revision = scheduled.mapped();
    without_image_.erase(name);
  }
  if (revision != 0) instances_->Remove(name, revision, /*await_image=*/true);
  logs_->Remove(name).IgnoreError();
  if (record.ok()) with_layers_.TidyUnlessAtWork(record->owner.uid);
  record = absl::NotFoundError("");  // and with it its layers
  TidyLayers();
  return absl::OkStatus();
}

void Functions::ImageMade(const std::string& name, uint64_t revision, const std::string& reference) {
  auto record = catalog_->Find(name);
  if (!record.ok() || record->revision != revision) return;
  functions::FunctionImages images = record->images;
  images.function_image = reference;
  absl::Status noted = catalog_->SetImages(name, revision, images);
  if (!noted.ok() && !absl::IsAborted(noted)) Log(LogLevel::kWarning, noted.message());
}

// What the HTTP front calls: identities are Callers.
class Functions::Front : public functions::Invoker {
 public:
  explicit Front(const Functions& functions) : functions_(functions.lifeline_.end()) {}

  void Invoke(functions::InvokeRequest request, Done done) override {
    auto functions = functions_.Hold();
    if (!functions) return done(Ending());
    const Caller& caller = *std::any_cast<Caller>(&request.identity);
    functions::Call call;
    call.function = std::move(request.function);
    call.request_id = std::move(request.request_id);
    call.payload = std::move(request.payload);
    call.client_context = std::move(request.client_context);
    call.trace_id = std::move(request.trace_id);
    call.dry_run = request.dry_run;
    call.gone = std::move(request.gone);
    if (request.async && !request.dry_run) {
      absl::Status accepted = functions->CallLater(caller, std::move(call));
      if (!accepted.ok()) return done(accepted);
      return done(functions::InvokeResult());
    }
    functions->Call(caller, std::move(call),
                    [done = std::move(done)](absl::StatusOr<functions::CallResult> result) {
                      if (!result.ok()) return done(result.status());
                      done(ToResult(*result));
                    });
  }

  absl::StatusOr<std::vector<functions::ListedFunction>> List(const std::any& identity) override {
    auto functions = functions_.Hold();
    if (!functions) return Ending();
    std::vector<functions::ListedFunction> listed;
    for (const functions::FunctionRecord& record : functions->Records(*std::any_cast<Caller>(&identity))) {
      functions::ListedFunction entry;
      entry.name = record.name();
      entry.runtime = record.spec.runtime.Name();
      entry.handler = record.spec.handler;
      entry.description = record.spec.description;
      entry.code_size = record.code_bytes;
      entry.memory_mib = record.spec.memory_bytes >> 20;
      entry.timeout = absl::Milliseconds(record.spec.timeout_ms);
      entry.last_modified = absl::FromUnixNanos(record.deployed_unix_ns);
      listed.push_back(std::move(entry));
    }
    return listed;
  }

 private:
  const Lifeline<Functions>::End functions_;
};

absl::Status Functions::ServeHttp(std::vector<UniqueFd> listeners, const functions::HttpLimits& limits) {
  functions::InvokeApi::Options options;
  options.limits = limits;
  options.identify = [groups = std::make_shared<KnownGroups>(kGroupsKnownFor)](
                         const functions::Peer& peer) -> absl::StatusOr<std::any> {
    RK_ASSIGN_OR_RETURN(Caller caller, CallerOfHttp(peer, *groups));
    return std::any(std::move(caller));
  };
  options.share_of = ShareOfHttp;
  invoker_ = std::make_shared<Front>(*this);
  RK_ASSIGN_OR_RETURN(
      front_, functions::InvokeApi::Start(*threads_, std::move(listeners), std::move(options), invoker_));
  serving_ = front_.get();
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
