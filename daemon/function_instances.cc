#include "daemon/function_instances.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/random_bytes.h"
#include "base/stable_hash.h"
#include "base/status.h"
#include "ckpt/capture.h"
#include "daemon/dependency_images.h"
#include "daemon/function_process.h"
#include "daemon/function_runtime.h"
#include "daemon/function_template.h"
#include "daemon/held_copy.h"
#include "daemon/instance_record.h"
#include "daemon/loaded_function.h"
#include "daemon/runtime_port.h"
#include "daemon/start_bound.h"
#include "restore/pager_client.h"

namespace rekindle::daemon {
namespace {

// How the runtimes begin a line that names what was drawn while a function was loaded for its image.
constexpr absl::string_view kDrawnLine = "rekindle: drawn: ";

using functions::StartedInstance;
using functions::StartLevel;
using functions::StartOrder;

// As Lambda's limit of file descriptors and processes together.
constexpr uint32_t kMostProcesses = 1024;

// One that reads a file which others edit again and again isn't captured for each of its starts.
constexpr absl::Duration kBetweenDrops = absl::Minutes(1);

// Of what a function says that can't be loaded for its image, where others are listed beside it.
constexpr size_t kMostShown = 300;

// "functions/u1000/resize-0123456789abcdef:r3": none of another user is called like that. Names of functions
// have capital letters, those of images have not.
std::string ImageReference(const functions::FunctionRecord& record) {
  std::string name = absl::AsciiStrToLower(record.name());
  for (char& c : name) {
    if (c == '_') c = '-';
  }
  while (name.find("--") != std::string::npos) name.erase(name.find("--"), 1);
  if (name.front() == '-') name.erase(0, 1);
  if (!name.empty() && name.back() == '-') name.pop_back();
  // The exact name, in case that others look the same: as numbers.
  const uint64_t exact = StableHash(record.name());
  return absl::StrCat(kFunctionImages, "u", record.owner.uid, "/", name.empty() ? "f" : name, "-",
                      absl::Hex(exact, absl::kZeroPad16), ":r", record.revision);
}

std::map<std::string, std::string> LabelsOf(const functions::FunctionRecord& record) {
  return {{kFunctionLabel, record.name()}, {kRevisionLabel, absl::StrCat(record.revision)}};
}

// Where one was removed, anybody may have put an image of his own under its name.
bool IsImageOf(const functions::FunctionRecord& record, const store::ImageInfo& image) {
  const std::map<std::string, std::string> labels = LabelsOf(record);
  return image.owner == record.owner.uid && std::all_of(labels.begin(), labels.end(), [&](const auto& label) {
           auto found = image.labels.find(label.first);
           return found != image.labels.end() && found->second == label.second;
         });
}

// Of a start: the image is of no use any more, and another one can be made.
bool IsOfNoUse(const absl::Status& refused) {
  return IsRefusedForOtherFiles(refused) || absl::IsDataLoss(refused);
}

}  // namespace

struct FunctionInstances::Place {
  InstancePlace place;
  UniqueFd listener;
  std::function<bool(int)> may_connect;
  InstanceIdentity identity;
};

// While something of a function is being made: whoever removes the function, or stops everything, ends it.
class FunctionInstances::Making {
 public:
  Making(const FunctionInstances& instances, LiveFunction& live) : instances_(instances), live_(live) {
    absl::MutexLock lock(&live_.mutex);
    live_.making.insert(&cancellation_);
  }
  ~Making() {
    absl::MutexLock lock(&live_.mutex);
    live_.making.erase(&cancellation_);
  }
  // Whether nobody had done so before this could be cancelled.
  absl::Status Check(const std::string& function, uint64_t revision) const {
    RK_RETURN_IF_ERROR(instances_.Find(function, revision).status());
    absl::MutexLock lock(&instances_.mutex_);
    return instances_.making_stopped_ ? absl::CancelledError("the daemon is ending") : absl::OkStatus();
  }
  const Cancellation& cancellation() const { return cancellation_; }

 private:
  const FunctionInstances& instances_;
  LiveFunction& live_;
  Cancellation cancellation_;
};

FunctionInstances::FunctionInstances(
    Node& node, functions::FunctionLogs& logs, functions::HttpThreads& threads,
    std::shared_ptr<DamagedImages> damaged, std::shared_ptr<RefusedImages> refused,
    std::function<void(const std::string& name, uint64_t revision, const std::string& reference)> image_made,
    std::function<void(const std::string& name, uint64_t revision, const absl::Status& loaded)> loaded,
    std::function<void()> files_changed)
    : node_(node),
      logs_(logs),
      threads_(threads),
      damaged_(std::move(damaged)),
      refused_(std::move(refused)),
      image_made_(std::move(image_made)),
      loaded_(std::move(loaded)),
      files_changed_(std::move(files_changed)),
      directory_(InstanceRecords(node.options().runtime_directory, node.options().store)) {
  FillWithRandomBytes(&run_, sizeof run_);
}

FunctionInstances::~FunctionInstances() = default;

std::string FunctionInstances::NewPath() {
  return absl::StrCat(directory_, "/", absl::Hex(run_, absl::kZeroPad8), "-", next_.fetch_add(1));
}

bool FunctionInstances::Add(const functions::FunctionRecord& record, const store::ImageInfo* dependency) {
  auto live = std::make_shared<LiveFunction>();
  live->record = record;
  if (dependency != nullptr) live->dependency_digest = dependency->digest;
  bool has_image = false;
  if (!record.images.function_image.empty()) {
    auto store = node_.OpenStore(Node::Access::kRead);
    auto info = store.ok() ? (*store)->Find(record.images.function_image) : store.status();
    // One of before its dependencies were built anew has what they were then.
    has_image = info.ok() && IsImageOf(record, *info) &&
                (dependency == nullptr || info->parent_digest == dependency->digest);
    absl::MutexLock lock(&live->mutex);
    if (has_image) live->image_digest = info->digest;
  }
  LivePtr before;
  {
    absl::MutexLock lock(&mutex_);
    LivePtr& present = functions_[{record.name(), record.revision}];
    if (present != nullptr) live->capturing = present->capturing;
    before = std::exchange(present, live);
  }
  if (before == nullptr || has_image) return has_image;
  // What is captured for the one before from now on is given to this by who captures it, or removed; what was
  // captured may not be noted yet.
  if (before->dependency_digest == live->dependency_digest) return TakeOverImage(*before, *live);
  {
    absl::MutexLock lock(&before->mutex);
    for (Cancellation* one : before->making) one->Cancel();
  }
  if (dependency != nullptr) RemoveImage(*before);
  return false;
}

absl::Status FunctionInstances::GiveImage(LivePtr live, const std::string& digest) {
  const std::string dependency = live->dependency_digest;
  for (;;) {
    {
      absl::MutexLock lock(&live->mutex);
      live->image_digest = digest;
    }
    const auto now = Find(live->record.name(), live->record.revision);
    if (now.ok() && *now == live) return absl::OkStatus();  // whoever takes its place takes that over
    if (!now.ok() || (*now)->dependency_digest != dependency) {
      RemoveImage(*live);
      return now.ok() ? absl::AbortedError("it was put in place anew meanwhile") : now.status();
    }
    {
      absl::MutexLock lock(&live->mutex);
      if (std::exchange(live->image_digest, "").empty()) return absl::OkStatus();  // taken over
    }
    live = *now;
  }
}

bool FunctionInstances::TakeOverImage(LiveFunction& before, LiveFunction& live) {
  std::string digest;
  {
    absl::MutexLock lock(&before.mutex);
    digest = std::exchange(before.image_digest, "");
  }
  if (digest.empty()) return false;
  absl::MutexLock lock(&live.mutex);
  live.image_digest = digest;
  return true;
}

std::shared_ptr<const void> FunctionInstances::Remove(const std::string& name, uint64_t revision,
                                                      bool await_image) {
  LivePtr gone;
  {
    absl::MutexLock lock(&mutex_);
    auto found = functions_.find({name, revision});
    if (found == functions_.end()) return nullptr;
    gone = std::move(found->second);
    functions_.erase(found);
  }
  std::shared_ptr<LiveTemplate> own;
  {
    absl::MutexLock lock(&gone->mutex);
    own = std::move(gone->own_template);
    for (Cancellation* one : gone->making) one->Cancel();
  }
  RemoveImage(*gone);
  // An image that is there all the same is found to be unwanted, and removed, by whoever has made it.
  if (await_image) {
    absl::MutexLock made(gone->capturing.get());
  }
  return gone;
}

absl::StatusOr<FunctionInstances::LivePtr> FunctionInstances::Find(const std::string& name,
                                                                   uint64_t revision) const {
  absl::MutexLock lock(&mutex_);
  auto found = functions_.find({name, revision});
  if (found != functions_.end()) return found->second;
  return absl::NotFoundError(
      absl::StrCat("revision ", revision, " of function '", name, "' is not there any more"));
}

absl::StatusOr<FunctionInstances::Place> FunctionInstances::MakePlace(const StartOrder& order,
                                                                      const LiveFunction& live) {
  Place made;
  made.identity.instance = order.instance;
  made.place.code = live.record.folder;
  const Owner& owner = live.record.owner;
  RK_ASSIGN_OR_RETURN(made.place.log, logs_.OpenStream(live.record.name(), order.instance, owner));
  made.place.memory_bytes = live.record.spec.memory_bytes;
  made.place.loaded = [this, name = live.record.name(), revision = live.record.revision](
                          const absl::Status& loaded) { loaded_(name, revision, loaded); };
  made.identity.log = absl::StrCat(made.place.log->path(), ".log");
  // Others may go through the folder, and reach what is theirs.
  RK_RETURN_IF_ERROR(MakeDirectories(directory_, 0711));
  const std::string path = NewPath();
  made.place.record = absl::StrCat(path, ".pid");
  if (live.record.spec.runtime.kind == functions::RuntimeKind::kProvided) {
    RK_ASSIGN_OR_RETURN(RuntimePort port, RuntimePort::Open(owner.uid));
    made.identity.runtime_api = port.address;
    made.listener = std::move(port.listener);
    made.may_connect = std::move(port.may_connect);
    return made;
  }
  RK_ASSIGN_OR_RETURN(made.listener, ListenForOwner(path, owner));
  made.place.socket = path;
  made.identity.socket = path;
  return made;
}

restore::CgroupLimits FunctionInstances::LimitsOf(const functions::FunctionSpec& spec) {
  return {spec.memory_bytes, spec.cpus, kMostProcesses};
}

restore::Network FunctionInstances::NetworkOf(const functions::FunctionSpec& spec) {
  switch (spec.network) {
    case v1::CloneOptions::NONE:
      return restore::Network::kNone;
    case v1::CloneOptions::OWN:
      return restore::Network::kOwn;
    default:
      return restore::Network::kHost;
  }
}

const absl::Status& FunctionInstances::LimitsUsable() {
  static const absl::Status usable = restore::Cgroup::Examine().status();
  return usable;
}

restore::OwnTemporary FunctionInstances::TemporaryOf(const functions::FunctionRecord& record) const {
  // It is of the instance's memory.
  const uint64_t half = record.spec.memory_bytes / 2;
  restore::OwnTemporary own = TemporaryOn(node_.options(), std::min(restore::kMostTemporary, half));
  own.shared_memory = half;
  // Other instances have the same, and layers are called by what is in them.
  own.read_only = LayersOf(record);
  own.read_only.push_back(record.folder->code());
  return own;
}

restore::CloneOptions FunctionInstances::OptionsFor(const LiveFunction& live,
                                                    const std::string& digest) const {
  const functions::FunctionSpec& spec = live.record.spec;
  restore::CloneOptions options;
  options.image = digest;
  options.name = spec.name;
  options.network = NetworkOf(spec);
  if (LimitsUsable().ok()) options.limits = LimitsOf(spec);
  options.temporary = TemporaryOf(live.record);
  if (live.record.owner.uid != ::geteuid()) {
    options.environment["REKINDLE_RUN_AS"] = RunAsText(live.record.owner);
    options.files_owner = live.record.owner;
  }
  return options;
}

absl::Status FunctionInstances::CheckCode(const functions::FunctionRecord& record) {
  RK_RETURN_IF_ERROR(node_.CheckStoreIsThere());
  std::vector<std::string> parts = LayersOf(record);
  parts.push_back(record.folder->code());
  const auto gone = std::find_if_not(parts.begin(), parts.end(), PathExists);
  if (gone == parts.end()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "its code, ", *gone,
      ", is gone: the store was emptied, or is another one now. Bring that back which had it, or "
      "deploy the function again with --replace"));
}

absl::StatusOr<StartedInstance> FunctionInstances::Start(const StartOrder& order) {
  if (starts_stopped_.cancelled()) return absl::CancelledError("the daemon is ending");
  RK_ASSIGN_OR_RETURN(LivePtr live, Find(order.function, order.revision));
  if (const absl::Status there = CheckCode(live->record); !there.ok()) {
    // A template is not gone for that.
    if (order.level == StartLevel::kTemplate || order.level == StartLevel::kDependencyTemplate)
      return absl::NotFoundError(there.message());
    return there;
  }
  // Before anything is made for a level that there is not.
  if (order.level == StartLevel::kTemplate || order.level == StartLevel::kDependencyTemplate) {
    RK_RETURN_IF_ERROR(TemplateFor(live, order.level).status());
  }
  RK_ASSIGN_OR_RETURN(Place place, MakePlace(order, *live));
  const std::string socket = place.place.socket;
  absl::StatusOr<StartedInstance> started = order.level == StartLevel::kCold
                                                ? StartCold(order, live, std::move(place))
                                                : StartCopy(order, live, std::move(place));
  if (!started.ok() && !socket.empty()) ::unlink(socket.c_str());
  return started;
}

absl::StatusOr<std::shared_ptr<LiveTemplate>> FunctionInstances::TemplateFor(const LivePtr& live,
                                                                             StartLevel level) {
  std::shared_ptr<LiveTemplate> found;
  if (level == StartLevel::kTemplate) {
    absl::MutexLock lock(&live->mutex);
    found = live->own_template;
  } else {
    absl::MutexLock lock(&mutex_);
    auto shared = dependency_templates_.find(live->record.images.dependency_image);
    if (shared != dependency_templates_.end()) found = shared->second;
  }
  if (found == nullptr) return absl::NotFoundError("no template is up");
  return found;
}

absl::Status FunctionInstances::DropLostTemplate(const LivePtr& live, StartLevel level,
                                                 const std::shared_ptr<LiveTemplate>& lost,
                                                 const absl::Status& why) {
  std::shared_ptr<LiveTemplate> gone;  // ended outside of the locks
  if (level == StartLevel::kTemplate) {
    absl::MutexLock lock(&live->mutex);
    if (live->own_template == lost) gone = std::move(live->own_template);
  } else {
    absl::MutexLock lock(&mutex_);
    auto found = dependency_templates_.find(live->record.images.dependency_image);
    if (found != dependency_templates_.end() && found->second == lost) {
      gone = std::move(found->second);
      dependency_templates_.erase(found);
    }
  }
  if (gone == nullptr) return absl::NotFoundError("its template has gone meanwhile");
  return absl::UnavailableError(why.message());
}

absl::StatusOr<restore::CloneResult> FunctionInstances::CopyImage(store::Store& store,
                                                                  const restore::CloneOptions& options) {
  if (const auto why = damaged_->Why(options.image))
    return absl::DataLossError(absl::StrCat("image ", options.image, " is damaged: ", *why));
  RK_ASSIGN_OR_RETURN(criu::Installation criu, node_.CriuIfAny());
  absl::StatusOr<restore::CloneResult> copy = node_.clones().Start(store, criu, options);
  if (absl::IsDataLoss(copy.status())) return damaged_->Judge(options.image, copy.status());
  return copy;
}

absl::Status FunctionInstances::GivenUp(const absl::Status& why) const {
  if (starts_stopped_.cancelled()) return why;
  return absl::DeadlineExceededError(
      "the copy was not made in time: what serves copies their memory hangs, or the disk of the store does; "
      "see "
      "pager.log in the runtime directory");
}

absl::StatusOr<StartedInstance> FunctionInstances::StartCopy(const StartOrder& order, const LivePtr& live,
                                                             Place place) {
  std::string digest = live->dependency_digest;
  if (order.level == StartLevel::kImageRam || order.level == StartLevel::kImageDisk) {
    absl::MutexLock lock(&live->mutex);
    digest = live->image_digest;
  }
  if (digest.empty()) return absl::NotFoundError("there is no such image");
  const functions::FunctionRecord& record = live->record;
  RK_ASSIGN_OR_RETURN(const StartBound bound, StartBound::Make(starts_stopped_, order.copied_by));
  restore::CloneOptions options = OptionsFor(*live, digest);
  options.cancel_fd = bound.fd();
  options.environment.merge(InstanceEnvironment(record, place.identity));
  absl::StatusOr<restore::CloneResult> copy = absl::NotFoundError("");
  std::function<void()> has_answered;
  if (order.level == StartLevel::kTemplate || order.level == StartLevel::kDependencyTemplate) {
    RK_ASSIGN_OR_RETURN(std::shared_ptr<LiveTemplate> from, TemplateFor(live, order.level));
    copy = from->forks().Fork(options);
    options.cancel_fd = -1;
    if (absl::IsCancelled(copy.status())) return GivenUp(copy.status());
    if (!copy.ok() && from->forks().lost()) return DropLostTemplate(live, order.level, from, copy.status());
    if (!copy.ok()) return copy.status();
    auto root = std::make_shared<UniqueFd>(std::move(copy->root_pidfd));
    // Weakly: when it is dropped it goes, however long its copies live.
    has_answered = [from = std::weak_ptr<LiveTemplate>(from), root, options] {
      if (auto up = from.lock()) up->forks().HasAnswered(*root, options);
    };
  } else {
    RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kRead));
    copy = CopyImage(*store, options);
    if (absl::IsCancelled(copy.status())) return GivenUp(copy.status());
    // The image of its dependencies was removed.
    if (absl::IsNotFound(copy.status()) && digest == live->dependency_digest) files_changed_();
    if (IsOfNoUse(copy.status())) {
      if (digest == live->dependency_digest && IsRefusedForOtherFiles(copy.status()))
        refused_->Note(digest, copy.status());
      files_changed_();
      if (digest != live->dependency_digest) {
        RK_RETURN_IF_ERROR(DropRefusedImage(live, digest, copy.status()));
        return absl::NotFoundError(copy.status().message());
      }
    }
    if (!copy.ok()) return copy.status();
    // Until its first answer all that it touches is its working set.
    has_answered = [this, store, digest, sandbox = copy->sandbox.id, root = copy->root] {
      auto pager = node_.clones().ConnectToPager(*store);
      if (pager.ok()) pager->Ready(sandbox).IgnoreError();
      auto info = store->Find(digest);
      if (!info.ok()) return;
      node_.clones().RecordTouchedFiles(*store, *info, root,
                                        [this] { return node_.OpenStore(Node::Access::kWrite); });
    };
  }
  StartedInstance started;
  // What is to be done about it the next start does, which may wait.
  auto damaged = [images = damaged_, digest](const absl::Status& why) {
    images->Judge(digest, why).IgnoreError();
  };
  RK_ASSIGN_OR_RETURN(started.process, FollowCopy(node_, *std::move(copy), std::move(place.place),
                                                  std::move(has_answered), std::move(damaged), order.on_end));
  started.listener = std::move(place.listener);
  started.may_connect = std::move(place.may_connect);
  return started;
}

absl::StatusOr<StartedInstance> FunctionInstances::StartCold(const StartOrder& order, const LivePtr& live,
                                                             Place place) {
  const functions::FunctionRecord& record = live->record;
  const functions::FunctionSpec& spec = record.spec;
  if (spec.network != v1::CloneOptions::HOST) {
    return absl::FailedPreconditionError(absl::StrCat(
        "function '", spec.name,
        "' has a network of its own, which only copies of an image get, and there is none that it could be "
        "started from: deploy it with --net host, or with a runtime that can be captured"));
  }
  Environment environment = InstanceEnvironment(record, place.identity);
  environment.erase("REKINDLE_OUTPUT");  // it has it from the start
  environment.merge(BaseEnvironment());
  if (!LimitsUsable().ok()) {
    environment[kInstanceMark] = place.identity.instance;
    place.place.mark = absl::StrCat(kInstanceMark, "=", place.identity.instance);
    if (record.owner.uid != 0) place.place.user = record.owner.uid;  // root's may have become anybody's
  }
  LaunchOptions launch;
  RK_ASSIGN_OR_RETURN(launch.argv, RuntimeCommand(spec.runtime, record.folder->code()));
  launch.environment = AsStrings(environment);
  launch.working_directory = record.folder->code();
  RK_ASSIGN_OR_RETURN(launch.log_file, place.place.log->OpenForInstance());
  launch.run_as = UserOf(record.owner);
  RK_ASSIGN_OR_RETURN(launch.mounts, restore::MountsWithOwnTemporary(TemporaryOf(record)));
  std::unique_ptr<restore::Cgroup> group;
  if (LimitsUsable().ok()) {
    RK_ASSIGN_OR_RETURN(group, restore::Cgroup::Make());
    RK_RETURN_IF_ERROR(group->Set(LimitsOf(spec)));
    launch.groups = group->processes();
  }
  const auto note = [&](pid_t pid) {
    place.place.noted =
        std::make_unique<InstanceRecord>(place.place.record, pid, group.get(), place.place.mark);
    return absl::OkStatus();
  };
  RK_ASSIGN_OR_RETURN(const pid_t pid, LaunchJob(launch, /*warnings=*/nullptr, note));
  StartedInstance started;
  RK_ASSIGN_OR_RETURN(started.process,
                      FollowChild(node_, pid, std::move(group), std::move(place.place), order.on_end));
  started.listener = std::move(place.listener);
  started.may_connect = std::move(place.may_connect);
  return started;
}

absl::StatusOr<uint64_t> FunctionInstances::MakeTemplate(const std::string& function, uint64_t revision,
                                                         const std::string& dependency_image) {
  if (function.empty()) {
    RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kRead));
    RK_ASSIGN_OR_RETURN(store::ImageInfo info, store->Find(dependency_image));
    if (info.owner != ::geteuid() || HasModulesOfLayers(info)) {
      return absl::FailedPreconditionError(absl::StrCat("image '", dependency_image,
                                                        "' has modules of a user's layers, which would run "
                                                        "in the template without his functions' limits"));
    }
    restore::CloneOptions options;  // no user's code runs in it
    options.image = info.digest;
    options.temporary = TemporaryOn(node_.options(), restore::kMostTemporary);
    auto made = TemplateOf(std::move(options));
    if (IsOfNoUse(made.status())) {
      if (IsRefusedForOtherFiles(made.status())) refused_->Note(info.digest, made.status());
      files_changed_();
      return absl::UnavailableError(made.status().message());  // it can be forked once it is made anew
    }
    RK_ASSIGN_OR_RETURN(std::shared_ptr<LiveTemplate> up, std::move(made));
    absl::MutexLock lock(&mutex_);
    // With the lock: whoever removes the image takes its template down after that.
    RK_ASSIGN_OR_RETURN(store::ImageInfo now, store->Find(dependency_image));
    if (now.digest != info.digest) return absl::AbortedError("its dependency image was replaced meanwhile");
    const uint64_t bytes = up->memory_bytes();
    dependency_templates_[dependency_image] = std::move(up);
    return bytes;
  }
  RK_ASSIGN_OR_RETURN(LivePtr live, Find(function, revision));
  RK_ASSIGN_OR_RETURN(std::string digest, ImageOf(live));
  auto made = TemplateUp(live, digest);
  if (IsOfNoUse(made.status())) {
    files_changed_();
    RK_RETURN_IF_ERROR(DropRefusedImage(live, digest, made.status()));
    RK_ASSIGN_OR_RETURN(digest, ImageOf(live));
    made = TemplateUp(live, digest);
    // That, too, passes.
    if (IsOfNoUse(made.status())) return absl::UnavailableError(made.status().message());
  }
  RK_ASSIGN_OR_RETURN(std::shared_ptr<LiveTemplate> up, std::move(made));
  const uint64_t bytes = up->memory_bytes();
  absl::MutexLock lock(&live->mutex);
  live->own_template = std::move(up);
  return bytes;
}

absl::StatusOr<std::string> FunctionInstances::ImageOf(const LivePtr& live) {
  const auto present = [&live] {
    absl::MutexLock lock(&live->mutex);
    return live->image_digest;
  };
  if (std::string digest = present(); !digest.empty()) return digest;
  RK_RETURN_IF_ERROR(CaptureImage(live->record.name(), live->record.revision).status());
  return present();
}

absl::StatusOr<std::shared_ptr<LiveTemplate>> FunctionInstances::TemplateUp(const LivePtr& live,
                                                                            const std::string& digest) {
  const Making making(*this, *live);
  RK_RETURN_IF_ERROR(making.Check(live->record.name(), live->record.revision));
  // Forking runs its code: what it has left to be done before and after that, handlers of signals.
  restore::CloneOptions options;
  options.image = digest;
  options.network = NetworkOf(live->record.spec);
  options.temporary = TemporaryOf(live->record);
  if (LimitsUsable().ok()) options.limits = LimitsOf(live->record.spec);
  options.cancel_fd = making.cancellation().fd();
  return TemplateOf(std::move(options));
}

absl::StatusOr<std::shared_ptr<LiveTemplate>> FunctionInstances::TemplateOf(restore::CloneOptions options) {
  const std::string digest = options.image;
  auto up = LiveTemplate::Up(node_, options);
  if (absl::IsDataLoss(up.status())) return damaged_->Judge(digest, up.status());
  return up;
}

void FunctionInstances::DropTemplate(const std::string& function, uint64_t revision,
                                     const std::string& dependency_image) {
  std::shared_ptr<LiveTemplate> gone;  // ended outside of the locks
  if (function.empty()) {
    absl::MutexLock lock(&mutex_);
    auto found = dependency_templates_.find(dependency_image);
    if (found == dependency_templates_.end()) return;
    gone = std::move(found->second);
    dependency_templates_.erase(found);
    return;
  }
  auto live = Find(function, revision);
  if (!live.ok()) return;
  absl::MutexLock lock(&(*live)->mutex);
  gone = std::move((*live)->own_template);
}

absl::StatusOr<uint64_t> FunctionInstances::CaptureImage(const std::string& function, uint64_t revision) {
  RK_ASSIGN_OR_RETURN(const LivePtr known, Find(function, revision));
  absl::MutexLock one_at_a_time(known->capturing.get());
  // Another may have taken its place, and its image.
  RK_ASSIGN_OR_RETURN(const LivePtr live, Find(function, revision));
  const functions::FunctionRecord& record = live->record;
  if (live->dependency_digest.empty()) return absl::NotFoundError("it has no dependency image to begin with");
  const std::string what = absl::StrCat("taking the image of function '", function, "'");
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kCreate));
  std::string taken;
  {
    absl::MutexLock lock(&live->mutex);
    taken = live->image_digest;
  }
  const Making making(*this, *live);
  RK_RETURN_IF_ERROR(making.Check(function, revision));
  if (auto info = store->Find(taken); !taken.empty() && info.ok()) return store::QuotaBytes(info->stats);
  RK_RETURN_IF_ERROR(MakeDirectories(directory_, 0711));
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<LoadReport> report,
                      LoadReport::Start(threads_, NewPath(), record.owner));
  InstanceIdentity identity;
  identity.instance = "capture";
  identity.socket = report->socket();
  restore::CloneOptions options = OptionsFor(*live, live->dependency_digest);
  options.environment.merge(InstanceEnvironment(record, identity));
  options.environment["REKINDLE_FUNCTION_IMAGE"] = "1";
  options.stdio = report->stdio();
  ckpt::CaptureOptions capture;
  capture.reference = ImageReference(record);
  capture.parent = live->dependency_digest;
  capture.owner = record.owner.uid;
  capture.temporary_files = ckpt::kFunctionTemporary;
  bool loaded = false, renews = false;
  const auto check = [&](pid_t root, bool has_after_restore) {
    loaded = true;
    renews = has_after_restore;
    absl::Status may = CheckLoadedFunction(root, has_after_restore);
    if (!may.ok()) NoteInLog(record, may.message());
    return may;
  };
  capture.labels = LabelsOf(record);
  // As long as an instance may take to start.
  const absl::Duration longest = absl::Milliseconds(record.spec.start_timeout_ms);
  absl::StatusOr<CapturedCopy> captured = CaptureNextReadyPoint(
      node_, *store, std::move(options), std::move(capture), {longest, &making.cancellation(), check}, what);
  if (absl::IsDataLoss(captured.status())) {
    const absl::Status judged = damaged_->Judge(live->dependency_digest, captured.status());
    if (absl::IsDataLoss(judged)) files_changed_();
    return judged;
  }
  if (absl::IsFailedPrecondition(captured.status()) && !loaded) {
    const absl::Status failed = NotLoaded(record, captured.status(), report->End());
    loaded_(function, revision, failed);
    return failed;
  }
  RK_RETURN_IF_ERROR(captured.status());
  if (!renews) NoteDrawn(record, report->End().written);
  RK_RETURN_IF_ERROR(GiveImage(live, captured->image.digest));
  image_made_(function, revision, captured->image.reference);
  return store::QuotaBytes(captured->image.stats);
}

absl::Status FunctionInstances::NotLoaded(const functions::FunctionRecord& record, const absl::Status& why,
                                          const LoadReport::Told& told) {
  NoteInLog(record, absl::StrCat(why.message(), told.error.empty() ? "" : ": ", told.error,
                                 told.written.empty() ? "" : "; it wrote:\n", told.written));
  std::string last = told.error;
  if (last.empty() && !told.written.empty()) {
    // An entry may have lines of its own, which such characters part.
    const size_t begin = told.written.find_last_of("\n\r");
    last = absl::StrCat("it wrote last: ", told.written.substr(begin == std::string::npos ? 0 : begin + 1));
  }
  if (last.size() > kMostShown) last = absl::StrCat(last.substr(0, kMostShown), "…");
  return absl::FailedPreconditionError(absl::StrCat(why.message(), last.empty() ? "" : ": ", last,
                                                    "; see what it writes with: rekindle fn logs ",
                                                    record.name()));
}

void FunctionInstances::NoteDrawn(const functions::FunctionRecord& record, absl::string_view written) {
  for (absl::string_view line : absl::StrSplit(written, absl::ByAnyChar("\n\r"))) {
    if (absl::ConsumePrefix(&line, kDrawnLine)) {
      NoteInLog(record,
                absl::StrCat("instances that start from its image have in common what was drawn at random "
                             "when it was loaded, by: ",
                             line, ". Have it drawn in the handler, or anew in each (docs/hook.md)"));
    }
  }
}

void FunctionInstances::NoteInLog(const functions::FunctionRecord& record, absl::string_view text) {
  if (const auto log = logs_.OpenStream(record.name(), "image", record.owner); log.ok())
    (*log)->Note(absl::StrCat("rekindle: ", text));
}

void FunctionInstances::StopMaking() {
  starts_stopped_.Cancel();
  absl::MutexLock lock(&mutex_);
  making_stopped_ = true;
  for (auto& [_, live] : functions_) {
    absl::MutexLock of_it(&live->mutex);
    for (Cancellation* one : live->making) one->Cancel();
  }
}

void FunctionInstances::DropImage(const std::string& function, uint64_t revision) {
  auto live = Find(function, revision);
  if (live.ok() && RemoveImage(**live)) image_made_(function, revision, "");
}

absl::Status FunctionInstances::DropRefusedImage(const LivePtr& live, const std::string& digest,
                                                 const absl::Status& why) {
  // Where the store is away what the image needs of it only seems to be gone.
  RK_RETURN_IF_ERROR(CheckCode(live->record));
  {
    absl::MutexLock lock(&live->mutex);
    if (live->image_digest != digest) return absl::OkStatus();
    if (SteadyNow() - live->image_dropped < kBetweenDrops) return absl::UnavailableError(why.message());
    live->image_dropped = SteadyNow();
  }
  Log(LogLevel::kInfo, absl::StrCat("the image of function '", live->record.name(),
                                    "' is dropped, and made anew when it is of use: ", why.message()));
  DropImage(live->record.name(), live->record.revision);
  return absl::OkStatus();
}

bool FunctionInstances::RemoveImage(LiveFunction& live) {
  std::string digest;
  {
    absl::MutexLock lock(&live.mutex);
    digest = std::exchange(live.image_digest, "");
  }
  auto store = node_.OpenStore(Node::Access::kWrite);
  if (digest.empty() || !store.ok()) return false;
  if (auto info = (*store)->Find(digest); info.ok()) (*store)->RemoveExactly(*info).IgnoreError();
  node_.clones().ForgetRemovedImages(**store);
  return true;
}

}  // namespace rekindle::daemon
