#include "daemon/dependency_images.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/log.h"
#include "base/pidfd.h"
#include "base/stable_hash.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "ckpt/capture.h"
#include "ckpt/held_job.h"
#include "ckpt/temporary_files.h"
#include "daemon/function_runtime.h"
#include "daemon/held_copy.h"
#include "daemon/instance_record.h"
#include "daemon/loaded_files.h"
#include "daemon/process_info.h"
#include "daemon/process_output.h"

namespace rekindle::daemon {
namespace {

constexpr char kRuntimeLabel[] = "rekindle.deps.runtime";
constexpr char kModulesLabel[] = "rekindle.deps.modules";
constexpr char kResidentLabel[] = "rekindle.deps.resident-bytes";
constexpr char kSecondsLabel[] = "rekindle.deps.build-seconds";
constexpr char kAskedByLabel[] = "rekindle.deps.asked-by";
constexpr absl::Duration kLongestLoad = absl::Minutes(5);
constexpr absl::Duration kLookIfHeld = absl::Milliseconds(5);
constexpr absl::Duration kLookIfGivenUp = absl::Milliseconds(50);
constexpr size_t kOutputShown = 2000;
// An image with more than is needed is fine up to this many times the memory of a bare runtime and modules.
constexpr uint64_t kSpareBytes = uint64_t{256} << 20;

// "deps/python3.11:numpy-torch", as far as tags allow it.
std::string ReferenceOf(const functions::Runtime& runtime, const std::vector<std::string>& modules) {
  constexpr size_t kLongestTag = 60;
  std::string tag = absl::StrJoin(modules, "-");
  if (tag.empty()) return absl::StrCat(kDependencyImages, runtime.Name(), ":bare");
  const std::string exact = tag;
  for (char& c : tag) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') c = '_';
  }
  if (tag.size() > kLongestTag || tag != exact || tag.front() == '-' || tag.front() == '.') {
    tag = absl::StrCat("m", tag.substr(0, kLongestTag), "-",
                       absl::Hex(StableHash(absl::StrJoin(modules, "\n"))));
  }
  return absl::StrCat(kDependencyImages, runtime.Name(), ":", tag);
}

std::optional<DependencyImage> FromInfo(const store::ImageInfo& info) {
  auto label = [&info](const char* name) {
    auto found = info.labels.find(name);
    return found == info.labels.end() ? std::string() : found->second;
  };
  auto runtime = functions::ParseRuntime(label(kRuntimeLabel));
  if (!info.labels.contains(kRuntimeLabel) || !runtime.ok()) return std::nullopt;
  DependencyImage image;
  image.info = info;
  image.runtime = *runtime;
  image.modules = absl::StrSplit(label(kModulesLabel), ',', absl::SkipEmpty());
  // Anybody can put labels on an image of his own, and functions of others would start from it.
  if (info.owner != ::geteuid() || info.reference != ReferenceOf(*runtime, image.modules))
    return std::nullopt;
  (void)absl::SimpleAtoi(label(kResidentLabel), &image.resident_bytes);
  (void)absl::SimpleAtod(label(kSecondsLabel), &image.build_seconds);
  if (!absl::SimpleAtoi(label(kAskedByLabel), &image.asked_by)) image.asked_by = info.owner;
  return image;
}

std::map<std::string, std::string> LabelsOf(const DependencyImage& image) {
  return {{kRuntimeLabel, image.runtime.Name()},
          {kModulesLabel, absl::StrJoin(image.modules, ",")},
          {kResidentLabel, absl::StrCat(image.resident_bytes)},
          {kSecondsLabel, absl::StrCat(image.build_seconds)},
          {kAskedByLabel, absl::StrCat(image.asked_by)}};
}

// For errors.
std::string What(const functions::Runtime& runtime, const std::vector<std::string>& modules) {
  return absl::StrCat("building a dependency image of ", runtime.Name(), modules.empty() ? "" : " with ",
                      absl::StrJoin(modules, ", "));
}

absl::Status GivenUp(const functions::Runtime& runtime, const std::vector<std::string>& modules) {
  return absl::CancelledError(absl::StrCat(What(runtime, modules), " was given up; nothing of it is left"));
}

// Where a runtime says which files of modules it has loaded.
class ModuleList {
 public:
  static absl::StatusOr<ModuleList> Make(const std::string& folder) {
    RK_RETURN_IF_ERROR(MakeDirectories(folder, 0711));
    RK_ASSIGN_OR_RETURN(TemporaryDirectory place, TemporaryDirectory::Make(folder, "loaded-"));
    return ModuleList(std::move(place));
  }
  std::string path() const { return place_.path() + "/list"; }
  // Empty: it has said nothing.
  std::string Read() const { return ReadFile(path()).value_or(""); }
  const ClockReading& began() const { return began_; }

 private:
  explicit ModuleList(TemporaryDirectory place) : place_(std::move(place)) {}

  TemporaryDirectory place_;
  ClockReading began_ = ClockReading::Now();
};

constexpr char kModuleListVariable[] = "REKINDLE_LOADED_FILES";

// An image without is made anew when it is looked at the next time.
void Keep(const LoadedFiles& loaded, store::Store& store, const store::ImageInfo& image) {
  absl::Status kept = store.PutNote(image, store::kLoadedFilesNote, loaded.Encode());
  if (!kept.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat("what image '", image.reference, "' has loaded could not be noted: ", kept.message()));
  }
}

}  // namespace

absl::Status MayHaveOneMore(const std::vector<DependencyImage>& images, uid_t user) {
  if (user == 0 || user == ::geteuid()) return absl::OkStatus();
  const auto has = std::count_if(images.begin(), images.end(), [user](const DependencyImage& image) {
    return image.asked_by == user && !image.modules.empty();
  });
  if (static_cast<size_t>(has) < kMostDependencyImagesOfOne) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("uid ", user, " has had ", has,
                   " dependency images made, and one user may have no more: use those there are "
                   "('rekindle deps ls'), or ask an administrator to remove some ('rekindle deps rm') or to "
                   "make this one"));
}

absl::StatusOr<std::vector<DependencyImage>> DependencyImages::List() const {
  std::vector<DependencyImage> images;
  auto store = node_.OpenStore(Node::Access::kRead);
  if (absl::IsNotFound(store.status())) return images;
  RK_RETURN_IF_ERROR(store.status());
  RK_ASSIGN_OR_RETURN(std::vector<store::ImageInfo> all, (*store)->List());
  for (const store::ImageInfo& info : all) {
    if (auto image = FromInfo(info)) images.push_back(*std::move(image));
  }
  return images;
}

absl::StatusOr<DependencyImage> DependencyImages::Find(const std::string& reference) const {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(store::ImageInfo info, store->Find(reference));
  if (auto image = FromInfo(info)) return *std::move(image);
  return absl::NotFoundError(absl::StrCat(
      "image '", reference, "' is no dependency image: 'rekindle deps ls' lists those there are"));
}

std::optional<std::string> DependencyImages::Change(const DependencyImage& image) const {
  const auto command = RuntimeCommand(image.runtime, "");
  auto store = node_.OpenStore(Node::Access::kRead);
  if (!command.ok() || !store.ok()) return std::nullopt;
  if (auto why = damaged_->Why(image.info.digest)) return absl::StrCat("it is damaged: ", *why);
  auto note = (*store)->GetNote(image.info.digest, store::kLoadedFilesNote);
  if (absl::IsNotFound(note.status())) return "what it has loaded was not noted by the Rekindle that made it";
  if (!note.ok() && !absl::IsDataLoss(note.status())) return std::nullopt;
  const auto loaded = note.ok() ? LoadedFiles::Decode(*note) : note.status();
  if (!loaded.ok()) return std::string(loaded.status().message());
  return loaded->Change(*command);
}

absl::StatusOr<DependencyImage> DependencyImages::FindUnchanged(const std::string& reference) const {
  RK_ASSIGN_OR_RETURN(DependencyImage there, Find(reference));
  if (auto change = Change(there)) return absl::NotFoundError(*change);
  return there;
}

absl::StatusOr<DependencyImages::Found> DependencyImages::Cover(
    const functions::Runtime& runtime, const std::vector<std::string>& modules, uid_t user,
    const std::function<void(const char* phase)>& progress, const Cancellation* cancel) {
  const std::set<std::string> needed(modules.begin(), modules.end());
  RK_ASSIGN_OR_RETURN(std::vector<DependencyImage> images, List());
  const DependencyImage* best = nullptr;
  uint64_t least = UINT64_MAX;  // of those that lack something: what there must be at least
  for (const DependencyImage& image : images) {
    if (!(image.runtime == runtime)) continue;
    const std::set<std::string> has(image.modules.begin(), image.modules.end());
    if (has == needed) return Found{image, true};
    if (!std::includes(has.begin(), has.end(), needed.begin(), needed.end())) {
      if (std::includes(needed.begin(), needed.end(), has.begin(), has.end()))
        least = std::min(least, image.resident_bytes);
      continue;
    }
    if (best == nullptr || image.resident_bytes < best->resident_bytes) best = &image;
  }
  // More than it needs costs nothing as long as it is shared: its pages are there already.
  if (best != nullptr && !needed.empty() &&
      best->resident_bytes <= (least == UINT64_MAX ? kSpareBytes : least + kSpareBytes)) {
    return Found{*best, true};
  }
  return Build(runtime, modules, /*rebuild=*/false, user, progress, cancel);
}

class DependencyImages::InWork {
 public:
  // Waits until nobody else makes it. Null: `given_up`, which is asked now and then.
  static std::unique_ptr<InWork> Begin(DependencyImages& images, const std::string& reference,
                                       const std::function<bool()>& given_up) {
    absl::MutexLock lock(&images.mutex_);
    auto free = [&]() ABSL_SHARED_LOCKS_REQUIRED(images.mutex_) {
      return !images.in_work_.contains(reference);
    };
    while (!AwaitUntil(images.mutex_, absl::Condition(&free), Deadline(kLookIfGivenUp))) {
      if (given_up()) return nullptr;
    }
    images.in_work_.insert(reference);
    return std::unique_ptr<InWork>(new InWork(images, reference));
  }
  ~InWork() {
    absl::MutexLock lock(&images_.mutex_);
    images_.in_work_.erase(reference_);
  }

 private:
  InWork(DependencyImages& images, const std::string& reference) : images_(images), reference_(reference) {}

  DependencyImages& images_;
  const std::string reference_;
};

absl::StatusOr<DependencyImages::Found> DependencyImages::Build(
    const functions::Runtime& runtime, const std::vector<std::string>& asked, bool rebuild, uid_t user,
    const std::function<void(const char* phase)>& progress, const Cancellation* cancel) {
  if (runtime.kind == functions::RuntimeKind::kProvided) {
    return absl::InvalidArgumentError(
        "a custom runtime (provided) has no dependency images: it brings its own program");
  }
  std::vector<std::string> modules = asked;
  std::sort(modules.begin(), modules.end());
  modules.erase(std::unique(modules.begin(), modules.end()), modules.end());
  const std::string reference = ReferenceOf(runtime, modules);
  if (!rebuild) {
    if (auto there = FindUnchanged(reference); there.ok()) return Found{*std::move(there), true};
  }
  // In a turn of its own: nobody who has one waits for another.
  if (!modules.empty() && absl::IsNotFound(BaseFor(runtime, modules, rebuild).status())) {
    RK_RETURN_IF_ERROR(Annotate(Build(runtime, {}, /*rebuild=*/false, user, progress, cancel).status(),
                                What(runtime, modules)));
  }
  progress("wait");
  const auto given_up = [&] { return node_.stopping() || (cancel != nullptr && cancel->cancelled()); };
  const auto turn = turns_.TakeUnless(user, given_up);
  if (!turn) return GivenUp(runtime, modules);
  // Within a turn: who has the name is at work on it.
  const std::unique_ptr<InWork> in_work = InWork::Begin(*this, reference, given_up);
  if (in_work == nullptr || given_up()) return GivenUp(runtime, modules);
  if (!rebuild) {
    if (auto there = FindUnchanged(reference); there.ok()) return Found{*std::move(there), true};
  }
  RK_ASSIGN_OR_RETURN(const std::vector<DependencyImage> images, List());
  const auto there = std::find_if(images.begin(), images.end(), [&](const DependencyImage& image) {
    return image.info.reference == reference;
  });
  // One user's are made one after the other, so that no two count on the same room.
  if (there == images.end() && !modules.empty()) {
    RK_RETURN_IF_ERROR(Annotate(MayHaveOneMore(images, user), What(runtime, modules)));
  }
  const uid_t asked_by = there == images.end() ? user : there->asked_by;
  progress("load");
  Stopwatch watch;
  RK_RETURN_IF_ERROR(node_.MakeRuntimeDirectory());
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kCreate));
  const absl::StatusOr<DependencyImage> built =
      modules.empty() ? BuildBare(*store, runtime, asked_by, progress, cancel)
                      : BuildOn(*store, runtime, modules, rebuild, asked_by, progress, cancel);
  if (!built.ok() && given_up()) return GivenUp(runtime, modules);
  RK_RETURN_IF_ERROR(built.status());
  Log(LogLevel::kInfo, absl::StrCat("dependency image '", built->info.reference, "' of ", runtime.Name(),
                                    " with ", modules.empty() ? "nothing more" : absl::StrJoin(modules, ", "),
                                    " built in ", absl::StrFormat("%.1f", watch.seconds()), " s"));
  made_(reference);
  return Found{*built, false};
}

absl::StatusOr<DependencyImage> DependencyImages::BaseFor(const functions::Runtime& runtime,
                                                          const std::vector<std::string>& modules,
                                                          bool bare) const {
  RK_ASSIGN_OR_RETURN(std::vector<DependencyImage> images, List());
  std::optional<DependencyImage> base;
  for (const DependencyImage& image : images) {
    if (!(image.runtime == runtime) || image.modules == modules || (bare && !image.modules.empty()) ||
        !std::includes(modules.begin(), modules.end(), image.modules.begin(), image.modules.end())) {
      continue;
    }
    if ((!base || image.modules.size() > base->modules.size()) && !Change(image)) base = image;
  }
  if (!base) {
    return absl::NotFoundError(
        absl::StrCat(What(runtime, modules),
                     ": the image that it was to lie on has been removed, or what that "
                     "has loaded has changed, in this moment: try again"));
  }
  return *std::move(base);
}

absl::StatusOr<DependencyImage> DependencyImages::BuildOn(
    store::Store& store, const functions::Runtime& runtime, const std::vector<std::string>& modules,
    bool rebuild, uid_t asked_by, const std::function<void(const char* phase)>& progress,
    const Cancellation* cancel) {
  const std::string what = What(runtime, modules);
  // Anew means with the libraries of now.
  RK_ASSIGN_OR_RETURN(const DependencyImage base, BaseFor(runtime, modules, /*bare=*/rebuild));
  // It may go meanwhile, with its notes; what builds upon it stays whole.
  RK_ASSIGN_OR_RETURN(const std::string below, store.GetNote(base.info.digest, store::kLoadedFilesNote));
  RK_ASSIGN_OR_RETURN(const LoadedFiles loaded_below, LoadedFiles::Decode(below));
  RK_ASSIGN_OR_RETURN(const std::vector<std::string> command, RuntimeCommand(runtime, ""));
  RK_ASSIGN_OR_RETURN(const ModuleList list, ModuleList::Make(InstanceRecords(
                                                 node_.options().runtime_directory, node_.options().store)));
  RK_ASSIGN_OR_RETURN(auto output, ProcessOutput::Make(kOutputShown));
  UniqueFd written = output->TakeWriteEnd();
  RK_RETURN_IF_ERROR(output->Follow());
  LoadedFiles loaded(command);
  restore::CloneOptions copy;
  copy.image = base.info.digest;
  copy.environment = {{"REKINDLE_MORE_DEPS", absl::StrJoin(modules, ",")},
                      {kModuleListVariable, list.path()}};
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  copy.stdio = {nothing.get(), written.get(), written.get()};
  // Users choose what is loaded, with root's rights, which copies need to become their owners: it finds
  // nothing that other users have made, neither files nor sockets.
  copy.temporary = TemporaryOn(node_.options(), restore::kMostTemporary);
  copy.own_shared_memory = true;
  copy.network = restore::Network::kOwn;
  ckpt::CaptureOptions capture;
  capture.reference = ReferenceOf(runtime, modules);
  capture.parent = base.info.digest;
  capture.temporary_files = ckpt::kDependencyTemporary;
  DependencyImage built;
  built.runtime = runtime;
  built.modules = modules;
  built.asked_by = asked_by;
  bool ready = false;
  const auto look = [&](pid_t root, bool /*has_after_restore*/) {
    ready = true;
    loaded.Add(root, list.Read(), list.began(), [&copy](const std::string& path) {
      return restore::LiesInOwnTemporary(path, copy.temporary.keep) || absl::StartsWith(path, "/dev/shm/");
    });
    const absl::Status may =
        ckpt::CheckTemporaryFiles(absl::StrCat("/proc/", root, "/root"), ckpt::kDependencyTemporary);
    if (may.ok()) return may;
    return absl::FailedPreconditionError(absl::StrCat(
        what, ": ", may.message(),
        ": leave out the module that makes it, or have that use another folder (docs/functions.md)"));
  };
  absl::StatusOr<CapturedCopy> captured =
      CaptureNextReadyPoint(node_, store, copy, std::move(capture), {kLongestLoad, cancel, look}, what,
                            [&](const CapturedCopy& copied, std::map<std::string, std::string>& labels) {
                              built.resident_bytes = copied.resident_bytes;
                              built.build_seconds = base.build_seconds + copied.seconds;
                              labels = LabelsOf(built);
                              progress("capture");
                            });
  if (absl::IsFailedPrecondition(captured.status()) && !ready) {
    written.Reset();
    return absl::InvalidArgumentError(
        absl::StrCat(captured.status().message(), ": ", absl::StripTrailingAsciiWhitespace(output->Text())));
  }
  if (absl::IsNotFound(captured.status())) {
    return absl::AbortedError(
        absl::StrCat(what, ": the image that it was to lie on has been removed meanwhile: try again"));
  }
  // The next attempt makes that one anew first.
  if (absl::IsDataLoss(captured.status())) return damaged_->Judge(base.info.digest, captured.status());
  RK_RETURN_IF_ERROR(captured.status());
  built.info = std::move(captured->image);
  loaded.AddBelow(loaded_below);
  Keep(loaded, store, built.info);
  return built;
}

absl::StatusOr<DependencyImage> DependencyImages::BuildBare(
    store::Store& store, const functions::Runtime& runtime, uid_t asked_by,
    const std::function<void(const char* phase)>& progress, const Cancellation* cancel) {
  const std::string what = What(runtime, {});
  RK_ASSIGN_OR_RETURN(criu::Installation criu, node_.Criu());
  RK_ASSIGN_OR_RETURN(auto output, ProcessOutput::Make(kOutputShown));
  LaunchOptions launch;
  RK_ASSIGN_OR_RETURN(launch.argv, RuntimeCommand(runtime, ""));
  LoadedFiles loaded(launch.argv);
  const std::string records = InstanceRecords(node_.options().runtime_directory, node_.options().store);
  RK_ASSIGN_OR_RETURN(const ModuleList list, ModuleList::Make(records));
  Environment environment = HeldEnvironment({});
  environment[kModuleListVariable] = list.path();
  launch.environment = AsStrings(environment);
  launch.log_file = output->TakeWriteEnd();
  RK_RETURN_IF_ERROR(output->Follow());
  Stopwatch watch;
  RK_ASSIGN_OR_RETURN(const pid_t pid, LaunchJob(launch));
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  launch.log_file.Reset();
  const InstanceRecord record(absl::StrCat(records, "/build-", pid, ".pid"), pid, nullptr);
  RK_ASSIGN_OR_RETURN(std::shared_ptr<const JobEnd> end, AdoptWithGroup(node_.reaper(), pid));
  const Deadline deadline(kLongestLoad);
  while (!ckpt::IsHeld(pid)) {
    if (auto exit = end->WaitFor(kLookIfHeld)) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": ", exit->ToString(), ": ",
                                                     absl::StripTrailingAsciiWhitespace(output->Text())));
    }
    const bool given_up = node_.stopping() || (cancel != nullptr && cancel->cancelled());
    if (!deadline.passed() && !given_up) continue;
    SendSignal(pidfd.get(), SIGKILL);
    if (given_up) return GivenUp(runtime, {});
    return absl::DeadlineExceededError(
        absl::StrCat(what, ": it has not loaded within ", absl::FormatDuration(kLongestLoad)));
  }
  DependencyImage built;
  built.build_seconds = watch.seconds();
  built.resident_bytes = MeasureTree(pid).resident_bytes;
  built.runtime = runtime;
  built.asked_by = asked_by;
  loaded.Add(pid, list.Read(), list.began());
  progress("capture");
  ckpt::CaptureOptions options;
  options.pid = pid;
  options.reference = ReferenceOf(runtime, {});
  options.temporary_files = ckpt::kDependencyTemporary;  // it has none: it has seen the machine's
  options.stop = true;
  options.replace = true;
  options.replace_others = true;  // the name is ours
  options.runtime_directory = node_.options().runtime_directory;
  options.spill_directory = node_.options().store;
  options.labels = LabelsOf(built);
  auto captured = ckpt::Capture(store, criu, nullptr, options, nullptr,
                                cancel != nullptr ? &cancel->cancelled() : nullptr);
  if (!captured.ok()) {
    SendSignal(pidfd.get(), SIGKILL);
    return Annotate(captured.status(), what);
  }
  built.info = captured->image;
  Keep(loaded, store, built.info);
  return built;
}

}  // namespace rekindle::daemon
