#include "daemon/functions.h"

#include <boost/asio/steady_timer.hpp>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/instance_record.h"
#include "functions/request_id.h"
#include "restore/cgroup.h"

namespace rekindle::daemon {
namespace {

// Of what is free when the daemon starts: for instances, templates and what else is kept of functions.
constexpr double kShareOfMemory = 0.6;
constexpr absl::Duration kTidyEvery = absl::Seconds(1);
constexpr int kTidiedPerGroups = 10;

}  // namespace

std::string Functions::NoLimits(absl::string_view who, const absl::Status& why) {
  return absl::StrCat(who, " no limits of memory, CPU and processes on this machine: ", why.message());
}

absl::Status Functions::Ending() { return absl::UnavailableError("the daemon is ending"); }

functions::ScheduledFunction Functions::AsSpecified(const functions::FunctionRecord& record) {
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
      node_, *logs_, *threads_, damaged_, refused_,
      // On the scheduler's threads, which end before this.
      [this](const std::string& name, uint64_t revision, const std::string& image) {
        ImageMade(name, revision, image);
      },
      [this](const std::string& name, uint64_t revision, const absl::Status& loaded) {
        NoteLoaded(name, revision, loaded);
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
  if (scheduler_) scheduler_->Stop();  // what it has begun may ask it
  scheduler_.reset();                  // before the front: callers hear of it
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

std::shared_ptr<const void> Functions::Schedule(const functions::FunctionRecord& record) {
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
  if (old == 0 || old == record.revision) return nullptr;
  return instances_->Remove(record.name(), old, /*await_image=*/false);
}

absl::Status Functions::ScheduleIfPresent(const functions::FunctionRecord& record) {
  std::shared_ptr<const void> gone;  // after the lock
  absl::MutexLock lock(&scheduling_);
  auto present = catalog_->Find(record.name());
  if (present.ok() && present->revision == record.revision) {
    gone = Schedule(*present);  // its settings may be other ones by now
    return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat("function '", record.name(),
                                         "' was deployed again, or removed, before this deployment had "
                                         "ended, which has no effect"));
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
  const WaitingEvents::Refusals events = events_->refusals();
  refused.events = events.all;
  refused.events_of_one = events.of_one;
  return refused;
}

std::function<uint64_t(std::optional<uid_t> owner)> Functions::CountsCode() const {
  return [catalog = catalog_](std::optional<uid_t> owner) {
    uint64_t bytes = catalog->ledger()->Of(owner);
    for (const auto& [key, of_layer] : catalog->layers().Sizes()) {
      if (!owner || key.first == *owner) bytes += of_layer;
    }
    return bytes;
  };
}

uint64_t Functions::CodeBytes(std::optional<uid_t> owner) const { return CountsCode()(owner); }

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
    only_alone_.erase(name);
    // While nobody else, perhaps another user, has the name; what instances write until they end goes below.
    logs_->Remove(name).IgnoreError();
  }
  if (revision != 0) instances_->Remove(name, revision, /*await_image=*/true);
  {
    // Not those of a function that has got the name meanwhile: no instance of it starts, and opens its log,
    // before it is scheduled.
    absl::MutexLock scheduling(&scheduling_);
    if (absl::IsNotFound(catalog_->Find(name).status())) logs_->Remove(name).IgnoreError();
  }
  if (record.ok()) with_layers_.TidyUnlessAtWork(record->owner.uid);
  record = absl::NotFoundError("");  // and with it its layers
  TidyLayers();
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
