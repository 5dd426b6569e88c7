// The functions of this node: deployed, invoked, kept. What the remote procedures and the HTTP front share.
#pragma once

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/deadline.h"
#include "base/lifeline.h"
#include "daemon/caller.h"
#include "daemon/calls_in_work.h"
#include "daemon/cancellation.h"
#include "daemon/dependency_images.h"
#include "daemon/dependency_renewal.h"
#include "daemon/function_events.h"
#include "daemon/function_instances.h"
#include "daemon/node.h"
#include "daemon/owners_at_work.h"
#include "daemon/wakeup.h"
#include "functions/fair_turns.h"
#include "functions/function_catalog.h"
#include "functions/function_logs.h"
#include "functions/invoke_api.h"
#include "functions/scheduler.h"

namespace rekindle::daemon {

// Each is looked at by every deployment and once a minute; root may have any number.
inline constexpr size_t kMostFunctionsOfOne = 1000;

// For people, of a handler that could not be loaded: FunctionImages::load_failure.
std::string LoadFailure(const absl::Status& why);

// It could not be loaded, as it seems because an instance has the port, or the lock, that it wants.
bool IsInAnothersWay(absl::string_view why);

// For people: why one that can be loaded may not be loaded a second time beside an instance, and what helps.
std::string WhyAlone(const functions::FunctionSpec& spec);

// Thread-safe.
class Functions {
 public:
  // Puts what is deployed to work. Unavailable: another daemon has this store's functions.
  static absl::StatusOr<std::shared_ptr<Functions>> Start(Node& node);
  // Ends all instances, and the threads that callbacks run on: those never own it.
  ~Functions();

  // The daemon is about to end. Invocations and events that come from now on are Unavailable (503); those
  // that were accepted go on.
  void TakeNoMore();
  // After TakeNoMore: returns when nothing of these is in work and all callers have their answers, or at
  // `deadline`.
  void AwaitCalls(const Deadline& deadline);

  struct DeployResult {
    functions::FunctionRecord record;
    bool unchanged = false;
    std::vector<std::string> warnings;
  };
  // `force`: what can't be loaded may take the place of a revision. FailedPrecondition: it would.
  absl::StatusOr<DeployResult> Deploy(const Caller& caller, const functions::FunctionSpec& spec, bool replace,
                                      bool force,
                                      const std::function<void(const char* phase, uint64_t bytes)>& progress,
                                      const Cancellation* cancel);
  // Gives the code of this present revision, as Find found it, other settings, as its owner. Aborted: it is
  // not the present one any more. Where the code has not to be started anew for them its instances stay.
  // `layers`: those that are copied from their folders, for the others stay, too.
  absl::StatusOr<DeployResult> Set(const functions::FunctionRecord& present,
                                   const functions::FunctionSpec& spec, functions::NewParts parts, bool force,
                                   const std::function<void(const char* phase, uint64_t bytes)>& progress,
                                   const Cancellation* cancel);
  // `done` is called once, from any thread. PermissionDenied: it is somebody else's.
  void Call(const Caller& caller, functions::Call call, functions::Scheduler::Done done);
  // Accepts it, and tries it until it succeeds: up to three times where the function fails. Errors: it was
  // not accepted.
  absl::Status CallLater(const Caller& caller, functions::Call call);
  // What this caller may see, by name.
  std::vector<functions::FunctionRecord> Records(const Caller& caller) const;
  absl::StatusOr<functions::FunctionRecord> Find(const Caller& caller, const std::string& name,
                                                 const char* verb) const;
  absl::Status Remove(const Caller& caller, const std::string& name);
  absl::StatusOr<functions::FunctionNumbers> Numbers(const std::string& name) const {
    return scheduler_->Numbers(name);
  }
  std::vector<functions::StartTimes> StartTimes() const { return scheduler_->Times(); }
  // Why the present revision could not be loaded again, for an instance or its image, while an instance of it
  // served; empty: as far as is known it can be.
  std::string OnlyAlone(const functions::FunctionRecord& record) const ABSL_LOCKS_EXCLUDED(mutex_);
  // What came to no function because a limit was reached, over all callers.
  struct Refusals {
    functions::InvokeApi::Refusals http;
    uint64_t events = 0, events_of_one = 0;
  };
  Refusals refusals() const;
  DependencyImages& dependencies() { return dependencies_; }
  // Of what a user names himself: see DependencyImages::Build, and, where some of the modules come from his
  // layers, BuildWithLayers. That image stays until it is removed.
  absl::StatusOr<DependencyImages::Found> BuildDependencies(
      const Caller& caller, const functions::Runtime& runtime, const std::vector<std::string>& modules,
      const functions::LayerNames& layers, bool rebuild,
      const std::function<void(const char* phase, uint64_t bytes)>& progress, const Cancellation* cancel);
  // With its template. That no function uses it is for the caller to see.
  absl::Status RemoveDependencies(const store::ImageInfo& image);
  // Removes layers that nothing refers to any more.
  void TidyLayers();
  // What the code and layers of this user's functions take in the store, or those of all. May take seconds
  // the first time. The second also tells it when these are gone.
  uint64_t CodeBytes(std::optional<uid_t> owner) const;
  std::function<uint64_t(std::optional<uid_t> owner)> CountsCode() const;
  functions::FunctionLogs& logs() { return *logs_; }

  // The HTTP front. `listener`: a listening socket, Unix or TCP of the loopback interface.
  absl::Status ServeHttp(std::vector<UniqueFd> listeners, const functions::HttpLimits& limits);

 private:
  explicit Functions(Node& node);
  absl::Status Begin();
  static absl::Status Ending();
  // For people.
  static std::string NoLimits(absl::string_view who, const absl::Status& why);
  // Without what its images say.
  static functions::ScheduledFunction AsSpecified(const functions::FunctionRecord& record);
  // ResourceExhausted: without the one of this name they have as many functions as they may.
  absl::Status CheckMayHaveMore(const Owner& owner, const std::string& name) const;
  // What the present revisions of this user's functions take, without layers.
  uint64_t PresentBytes(uid_t owner) const;
  // `options`: what is to be replaced.
  absl::StatusOr<DeployResult> DeployAs(
      const Owner& owner, const functions::FunctionSpec& spec, bool force, functions::DeployOptions options,
      const std::function<void(const char* phase, uint64_t bytes)>& progress, const Cancellation* cancel);
  // Chooses its dependency image, which may have to be made. What goes wrong with that is a warning: it can
  // be started without. Cancelled: so it was, or the daemon is ending. FailedPrecondition: it can't be
  // loaded, and `replaces_one`.
  absl::StatusOr<functions::FunctionImages> FindImages(const functions::FunctionRecord& record,
                                                       bool replaces_one,
                                                       const std::function<void(const char* phase)>& progress,
                                                       const Cancellation* cancel,
                                                       std::vector<std::string>* warnings);
  // For people, of one that should have one, and of one whose layers should be loaded ahead.
  std::string WhyNoDependencyImage(const functions::FunctionRecord& record) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::string WhyLayersAreNotLoaded(const functions::FunctionRecord& record) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // As it is known: of this revision.
  std::string WhyNot(const functions::FunctionRecord& record) const ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteWhyNot(const functions::FunctionRecord& record, absl::string_view why) ABSL_LOCKS_EXCLUDED(mutex_);
  // The result is for after the lock: see FunctionInstances::Remove.
  std::shared_ptr<const void> Schedule(const functions::FunctionRecord& record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(scheduling_);
  // Aborted: it is not the present revision any more.
  absl::Status ScheduleIfPresent(const functions::FunctionRecord& record) ABSL_LOCKS_EXCLUDED(scheduling_);
  // The image for these, and which of them it has: where those of layers can't be loaded ahead, a warning
  // says so, and they are none of them; for a reason that may pass they are `not_loaded`. Otherwise as
  // DependencyImages::Cover.
  absl::StatusOr<DependencyImages::Found> CoverFor(const functions::FunctionRecord& record,
                                                   functions::FunctionImages* images,
                                                   const std::function<void(const char* phase)>& progress,
                                                   const Cancellation* cancel,
                                                   std::vector<std::string>* warnings);
  // Compiles what layers for Python have, so that no start has to, where nothing can write it down. What is
  // given is to stay there as long as this is used.
  functions::PrepareLayer CompileLayers(
      const functions::Runtime& runtime, const Owner& owner,
      const std::function<void(const char* phase, uint64_t bytes)>& progress, const Cancellation* cancel);
  // Of this owner, with modules of layers.
  void RemoveUnusedLayerImages(uid_t owner);
  void RemoveAllUnusedLayerImages();
  void ImageMade(const std::string& name, uint64_t revision, const std::string& reference);
  // Unless it is another revision by now, or none.
  void NoteImages(const std::string& name, uint64_t revision,
                  const std::function<void(functions::FunctionImages*)>& change);
  class Front;
  void PlanTidying();
  // On a thread of its own: all the files of a layer take their time.
  void TidyLayersNowAndThen();
  // Those that could not be read when the catalog was opened.
  void ScheduleReadAgain() ABSL_LOCKS_EXCLUDED(scheduling_);
  void RemoveLeftImages();
  // Functions that use it start from it from now on.
  void DependencyImageMade(const std::string& reference) ABSL_LOCKS_EXCLUDED(scheduling_);
  DependencyRenewal::Work RenewalWork();
  absl::Status RenewWithLayers(const DependencyImage& image, const Cancellation& cancel);
  // For all functions that can have it; an error: for some it can't be made.
  absl::Status BringBackDependencies(const std::string& reference, const Cancellation& cancel);
  absl::Status BringBackDependenciesOf(const functions::FunctionRecord& record, const Cancellation& cancel);
  // It was loaded, this revision, and what is known of it or one before it does not hold any more.
  void ForgetOnlyAlone(const std::string& name, uint64_t revision) ABSL_LOCKS_EXCLUDED(mutex_);
  // Notes whether the handler of a revision could be loaded. Of one that has an image it is known that it can
  // be, and of one of which an instance serves: FailedPrecondition is told of where one does alone.
  void NoteLoaded(const std::string& name, uint64_t revision, const absl::Status& loaded)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // How many instances of its present revision have loaded it.
  uint32_t Serving(const std::string& name) const;
  // What could not be loaded ahead of its layers; as DependencyRenewal::Work::make.
  absl::StatusOr<bool> LoadLayersAhead(const functions::FunctionRecord& record, const Cancellation& cancel);

  Node& node_;
  const std::shared_ptr<DamagedImages> damaged_ = std::make_shared<DamagedImages>();
  const std::shared_ptr<RefusedImages> refused_ = std::make_shared<RefusedImages>();
  DependencyImages dependencies_;
  std::unique_ptr<functions::FunctionLogs> logs_;
  std::shared_ptr<functions::FunctionCatalog> catalog_;
  std::unique_ptr<functions::HttpThreads> threads_;  // outlives what is served on it
  std::unique_ptr<FunctionInstances> instances_;
  std::unique_ptr<functions::Scheduler> scheduler_;
  std::unique_ptr<FunctionEvents> events_;
  std::shared_ptr<Front> invoker_;
  std::unique_ptr<functions::InvokeApi> front_;
  std::unique_ptr<DependencyRenewal> renewal_;
  std::atomic<const functions::InvokeApi*> serving_{nullptr};  // `front_`, as soon as it is there
  std::unique_ptr<boost::asio::steady_timer> trim_;
  int tidied_ = 0;
  std::thread layers_tidier_;
  Wakeup tidier_ends_;
  std::atomic<bool> ending_{false};

  const std::shared_ptr<CallsInWork> in_work_ = std::make_shared<CallsInWork>();
  // What the catalog has and what is scheduled change together. Before mutex_.
  absl::Mutex scheduling_;
  // As long as somebody is at work with a user's layers, no image that has modules of them is removed because
  // no function uses it.
  OwnersAtWork with_layers_{[this](uid_t owner) { RemoveUnusedLayerImages(owner); }};
  functions::FairTurns compilers_{2, 1};  // of layers, at once
  mutable absl::Mutex mutex_;
  std::map<std::string, uint64_t> scheduled_ ABSL_GUARDED_BY(mutex_);  // revisions, by name
  // Why the dependency image of a revision, or that with its layers, could not be made when that was tried
  // last; of the last one of each name.
  std::map<std::string, std::pair<uint64_t, std::string>> without_image_ ABSL_GUARDED_BY(mutex_);
  // The same of why a revision could not be loaded beside its instance.
  std::map<std::string, std::pair<uint64_t, std::string>> only_alone_ ABSL_GUARDED_BY(mutex_);
  Lifeline<Functions> lifeline_{this};
};

}  // namespace rekindle::daemon
