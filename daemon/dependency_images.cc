#include "daemon/dependency_images.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
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
#include "base/process_stat.h"
#include "base/stable_hash.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "base/utf8.h"
#include "ckpt/capture.h"
#include "ckpt/held_job.h"
#include "ckpt/temporary_files.h"
#include "daemon/function_instances.h"
#include "daemon/function_runtime.h"
#include "daemon/held_copy.h"
#include "daemon/instance_record.h"
#include "daemon/loaded_files.h"
#include "daemon/loaded_function.h"
#include "daemon/process_info.h"
#include "daemon/process_output.h"

namespace rekindle::daemon {
namespace {

constexpr char kRuntimeLabel[] = "rekindle.deps.runtime";
constexpr char kModulesLabel[] = "rekindle.deps.modules";
constexpr char kResidentLabel[] = "rekindle.deps.resident-bytes";
constexpr char kSecondsLabel[] = "rekindle.deps.build-seconds";
constexpr char kAskedByLabel[] = "rekindle.deps.asked-by";
constexpr char kLayersLabel[] = "rekindle.deps.layers";
constexpr char kOfLayersLabel[] = "rekindle.deps.of-layers";
constexpr char kRunAsLabel[] = "rekindle.deps.run-as";
constexpr char kKeptLabel[] = "rekindle.deps.kept";
constexpr char kDrawnLabel[] = "rekindle.deps.drawn";
// In the list of what a runtime has loaded, before what is none of its files.
constexpr absl::string_view kDrawn = "drawn: ";
constexpr size_t kMostDrawn = 16, kLongestDrawn = 200;
constexpr absl::Duration kLongestLoad = absl::Minutes(5);
constexpr absl::Duration kLookIfHeld = absl::Milliseconds(5);
constexpr absl::Duration kLookIfGivenUp = absl::Milliseconds(50);
constexpr size_t kOutputShown = 2000;
// Of what modules of layers are said to have loaded.
constexpr size_t kLongestModuleList = size_t{4} << 20;
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

// The same of an image with modules of layers: "deps/u1000/python3.11:pandas-0123456789abcdef". No shared one
// is called like that, and none of another user.
std::string ReferenceOf(const functions::Runtime& runtime, const std::vector<std::string>& modules,
                        const std::vector<std::string>& layers, uid_t owner, const std::string& run_as) {
  constexpr size_t kShown = 40;
  std::string tag = absl::StrJoin(modules, "-").substr(0, kShown);
  for (char& c : tag) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_') c = '-';
  }
  if (tag.empty() || tag.front() == '-') tag.insert(0, "m");
  return absl::StrCat(kDependencyImages, "u", owner, "/", runtime.Name(), ":", tag, "-",
                      absl::Hex(StableHash(absl::StrCat(absl::StrJoin(modules, "\n"), "\n\n",
                                                        absl::StrJoin(layers, "\n"), "\n\n", run_as)),
                                absl::kZeroPad16));
}

std::map<std::string, std::string> LabelsOf(const DependencyImage& image) {
  std::map<std::string, std::string> labels = {{kRuntimeLabel, image.runtime.Name()},
                                               {kModulesLabel, absl::StrJoin(image.modules, ",")},
                                               {kResidentLabel, absl::StrCat(image.resident_bytes)},
                                               {kSecondsLabel, absl::StrCat(image.build_seconds)},
                                               {kAskedByLabel, absl::StrCat(image.asked_by)},
                                               {kDrawnLabel, absl::StrJoin(image.drawn, "\n")}};
  if (image.is_shared()) return labels;
  labels[kLayersLabel] = absl::StrJoin(image.layers, ",");
  labels[kRunAsLabel] = image.run_as;
  labels[kOfLayersLabel] = absl::StrJoin(image.of_layers, ",");
  if (image.kept) labels[kKeptLabel] = "1";
  return labels;
}

// For errors.
std::string What(const functions::Runtime& runtime, const std::vector<std::string>& modules) {
  return absl::StrCat("building a dependency image of ", runtime.Name(), modules.empty() ? "" : " with ",
                      absl::StrJoin(modules, ", "));
}

absl::Status GivenUp(const functions::Runtime& runtime, const std::vector<std::string>& modules) {
  return absl::CancelledError(absl::StrCat(What(runtime, modules), " was given up; nothing of it is left"));
}

std::vector<std::string> DigestsOf(const std::vector<functions::LayerPtr>& layers) {
  std::vector<std::string> digests;
  for (const functions::LayerPtr& layer : layers) digests.push_back(layer->digest());
  return digests;
}

// Where a runtime says which files of modules it has loaded.
class ModuleList {
 public:
  // `writer`: who runs what is loaded, and can do no more than write into the file. Null: this user.
  static absl::StatusOr<ModuleList> Make(const std::string& folder, const Owner* writer = nullptr) {
    RK_RETURN_IF_ERROR(MakeDirectories(folder, 0711));
    RK_ASSIGN_OR_RETURN(TemporaryDirectory place, TemporaryDirectory::Make(folder, "loaded-"));
    const std::string path = place.path() + "/list";
    RK_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(path, O_RDWR | O_CREAT | O_EXCL, 0600));
    if (writer != nullptr && writer->uid != ::geteuid() &&
        (::chmod(place.path().c_str(), kThroughOnly) != 0 ||
         ::fchown(file.get(), writer->uid, writer->gid) != 0)) {
      return ErrnoStatus(errno, absl::StrCat("giving ", path, " to uid ", writer->uid));
    }
    return ModuleList(std::move(place), std::move(file));
  }
  std::string path() const { return place_.path() + "/list"; }
  // Empty: it has said nothing.
  std::string Read() const {
    std::string text(kLongestModuleList, '\0');
    size_t size = 0;
    while (size < text.size()) {
      const ssize_t got =
          ::pread(file_.get(), text.data() + size, text.size() - size, static_cast<off_t>(size));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      size += static_cast<size_t>(got);
    }
    text.resize(size);
    return text;
  }
  const ClockReading& began() const { return began_; }

 private:
  ModuleList(TemporaryDirectory place, UniqueFd file) : place_(std::move(place)), file_(std::move(file)) {}

  TemporaryDirectory place_;
  UniqueFd file_;
  ClockReading began_ = ClockReading::Now();
};

// Modules of a user's may have written the list.
std::vector<std::string> DrawnIn(absl::string_view list) {
  std::vector<std::string> drawn;
  for (absl::string_view entry : absl::StrSplit(list, '\0')) {
    if (!absl::ConsumePrefix(&entry, kDrawn) || drawn.size() == kMostDrawn) continue;
    std::string text = ToUtf8(entry, kLongestDrawn);
    std::replace(text.begin(), text.end(), '\n', ' ');
    drawn.push_back(std::move(text));
  }
  return drawn;
}

constexpr char kModuleListVariable[] = "REKINDLE_LOADED_FILES";

// An image without is made anew when it is looked at the next time.
void Keep(const LoadedFiles& loaded, store::Store& store, const store::ImageInfo& image) {
  absl::Status kept = store.PutNote(image, store::kLoadedFilesNote, loaded.Encode());
  if (!kept.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat("what image '", image.reference, "' has loaded could not be noted: ", kept.message()));
  }
}

// Of these, which may be used, the best for what is needed, as Cover says. Null: none.
const DependencyImage* BestOf(const std::vector<DependencyImage>& images,
                              const std::vector<std::string>& modules) {
  const std::set<std::string> needed(modules.begin(), modules.end());
  const DependencyImage* best = nullptr;
  uint64_t least = UINT64_MAX;  // of those that lack something: what there must be at least
  for (const DependencyImage& image : images) {
    const std::set<std::string> has(image.modules.begin(), image.modules.end());
    if (has == needed) return &image;
    if (image.is_shared() && image.MayHaveDrawn()) continue;
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
    return best;
  }
  return nullptr;
}

std::vector<std::string> Sorted(std::vector<std::string> modules) {
  std::sort(modules.begin(), modules.end());
  modules.erase(std::unique(modules.begin(), modules.end()), modules.end());
  return modules;
}

}  // namespace

bool DependencyImage::MayHaveDrawn() const {
  return !modules.empty() && (!drawn.empty() || !info.labels.contains(kDrawnLabel));
}

std::optional<DependencyImage> DependencyImageFrom(const store::ImageInfo& info) {
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
  image.layers = absl::StrSplit(label(kLayersLabel), ',', absl::SkipEmpty());
  image.of_layers = absl::StrSplit(label(kOfLayersLabel), ',', absl::SkipEmpty());
  image.run_as = label(kRunAsLabel);
  image.kept = info.labels.contains(kKeptLabel);
  image.drawn = absl::StrSplit(label(kDrawnLabel), '\n', absl::SkipEmpty());
  // Anybody can put labels on an image of his own, and functions of others would start from it.
  if (image.is_shared()) {
    if (info.owner != ::geteuid() || info.reference != ReferenceOf(*runtime, image.modules))
      return std::nullopt;
  } else if (info.reference != ReferenceOf(*runtime, image.modules, image.layers, info.owner, image.run_as) ||
             !std::all_of(image.layers.begin(), image.layers.end(), functions::IsLayerDigest)) {
    return std::nullopt;
  }
  (void)absl::SimpleAtoi(label(kResidentLabel), &image.resident_bytes);
  (void)absl::SimpleAtod(label(kSecondsLabel), &image.build_seconds);
  if (!absl::SimpleAtoi(label(kAskedByLabel), &image.asked_by)) image.asked_by = info.owner;
  return image;
}

bool DependencyImage::MayBeUsedBy(const Owner& user) const {
  return is_shared() || (info.owner == user.uid && run_as == RunAsText(user));
}

std::string SomeOf(const std::vector<std::string>& texts) {
  constexpr size_t kShown = 3, kShownBytes = 300;
  const std::vector<std::string> shown(
      texts.begin(), texts.begin() + static_cast<std::ptrdiff_t>(std::min(texts.size(), kShown)));
  return absl::StrCat(ToUtf8(absl::StrJoin(shown, "; "), kShownBytes),
                      texts.size() > kShown ? "; and others" : "");
}

std::string WarnOfDrawnIn(const std::string& reference, const std::vector<std::string>& drawn) {
  return absl::StrCat(
      "all functions that start from dependency image '", reference,
      "' have in common what was drawn at random when its modules were loaded, by: ", SomeOf(drawn),
      ". Leave that module out, so that each function loads its own, or deploy with --no-image");
}

bool HasModulesOfLayers(const store::ImageInfo& image) { return image.labels.contains(kLayersLabel); }

absl::Status MayHaveOneMore(const std::vector<DependencyImage>& images, uid_t user, bool of_layers) {
  if (user == 0 || user == ::geteuid()) return absl::OkStatus();
  const auto has = std::count_if(images.begin(), images.end(), [&](const DependencyImage& image) {
    // Of an own image its owner may have written what it says of itself.
    const uid_t whose = of_layers ? image.info.owner : image.asked_by;
    return whose == user && !image.modules.empty() && image.is_shared() != of_layers;
  });
  if (static_cast<size_t>(has) < kMostDependencyImagesOfOne) return absl::OkStatus();
  if (of_layers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("uid ", user, " has ", has,
                     " images with modules of layers, and one user may have no more: remove some "
                     "('rekindle deps ls', 'rekindle deps rm')"));
  }
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
    if (auto image = DependencyImageFrom(info)) images.push_back(*std::move(image));
  }
  return images;
}

absl::StatusOr<DependencyImage> DependencyImages::Find(const std::string& reference) const {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(store::ImageInfo info, store->Find(reference));
  if (auto image = DependencyImageFrom(info)) return *std::move(image);
  return absl::NotFoundError(absl::StrCat(
      "image '", reference, "' is no dependency image: 'rekindle deps ls' lists those there are"));
}

std::optional<std::string> DependencyImages::Change(const DependencyImage& image) const {
  const auto command = RuntimeCommand(image.runtime, "");
  auto store = node_.OpenStore(Node::Access::kRead);
  if (!command.ok() || !store.ok()) return std::nullopt;
  if (auto why = damaged_->Why(image.info.digest)) return absl::StrCat("it is damaged: ", *why);
  if (auto why = refused_->Why(image.info.digest)) return absl::StrCat("a start from it was refused: ", *why);
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
  RK_ASSIGN_OR_RETURN(std::vector<DependencyImage> images, List());
  std::erase_if(images, [&](const DependencyImage& image) {
    return !image.is_shared() || !(image.runtime == runtime);
  });
  if (const DependencyImage* best = BestOf(images, modules)) return Found{*best, true};
  return Build(runtime, modules, /*rebuild=*/false, user, progress, cancel);
}

absl::StatusOr<DependencyImages::Found> DependencyImages::CoverWithLayers(
    const functions::Runtime& runtime, const std::vector<std::string>& modules, const OwnersLayers& layers,
    const std::function<void(const char* phase)>& progress, const Cancellation* cancel) {
  RK_ASSIGN_OR_RETURN(std::vector<DependencyImage> images, List());
  const std::vector<std::string> digests = DigestsOf(layers.layers);
  std::erase_if(images, [&](const DependencyImage& image) {
    return image.is_shared() || !image.MayBeUsedBy(layers.owner) || !(image.runtime == runtime) ||
           image.layers != digests;
  });
  if (const DependencyImage* best = BestOf(images, modules)) return Found{*best, true};
  return BuildWithLayers(runtime, modules, layers, /*rebuild=*/false, /*kept=*/false, progress, cancel);
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

std::string DependencyImages::Order::Reference() const {
  if (layers == nullptr) return ReferenceOf(runtime, modules);
  return ReferenceOf(runtime, modules, DigestsOf(layers->layers), layers->owner.uid,
                     RunAsText(layers->owner));
}

std::string DependencyImages::Order::What() const { return daemon::What(runtime, modules); }

absl::StatusOr<DependencyImages::Found> DependencyImages::Build(
    const functions::Runtime& runtime, const std::vector<std::string>& asked, bool rebuild, uid_t user,
    const std::function<void(const char* phase)>& progress, const Cancellation* cancel) {
  Order order;
  order.runtime = runtime;
  order.modules = Sorted(asked);
  order.rebuild = rebuild;
  order.user = user;
  return BuildOrder(order, progress, cancel);
}

absl::StatusOr<DependencyImages::Found> DependencyImages::BuildWithLayers(
    const functions::Runtime& runtime, const std::vector<std::string>& asked, const OwnersLayers& layers,
    bool rebuild, bool kept, const std::function<void(const char* phase)>& progress,
    const Cancellation* cancel) {
  Order order;
  order.runtime = runtime;
  order.modules = Sorted(asked);
  order.layers = &layers;
  order.rebuild = rebuild;
  order.kept = kept;
  order.user = layers.owner.uid;
  return BuildOrder(order, progress, cancel);
}

absl::StatusOr<DependencyImages::Found> DependencyImages::BuildOrder(
    const Order& order, const std::function<void(const char* phase)>& progress, const Cancellation* cancel) {
  // It may be made anew, or removed, while this waits for its turn.
  constexpr int kMostBuilds = 3;
  for (int tries = 1;; ++tries) {
    bool base_has_gone = false;
    absl::StatusOr<Found> built = TryBuild(order, progress, cancel, &base_has_gone);
    if (built.ok() || !base_has_gone || tries == kMostBuilds) return built;
  }
}

absl::StatusOr<DependencyImages::Found> DependencyImages::TryBuild(
    const Order& order, const std::function<void(const char* phase)>& progress, const Cancellation* cancel,
    bool* base_has_gone) {
  const auto& [runtime, modules, layers, rebuild, kept, user] = order;
  if (runtime.kind == functions::RuntimeKind::kProvided) {
    return absl::InvalidArgumentError(
        "a custom runtime (provided) has no dependency images: it brings its own program");
  }
  const std::string reference = order.Reference();
  const std::string what = order.What();
  // One that was made for functions alone would go with them.
  const auto find = [&] {
    absl::StatusOr<DependencyImage> there = FindUnchanged(reference);
    if (there.ok() && order.kept && !there->kept) there = absl::NotFoundError("it is not kept");
    return there;
  };
  if (!rebuild) {
    if (auto there = find(); there.ok()) return Found{*std::move(there), true};
  }
  // In a turn of its own: nobody who has one waits for another.
  std::optional<DependencyImage> below;
  if (layers != nullptr) {
    RK_ASSIGN_OR_RETURN(below, BaseForLayers(order, progress, cancel));
  } else if (!modules.empty() && absl::IsNotFound(BaseFor(runtime, modules, rebuild).status())) {
    RK_RETURN_IF_ERROR(
        Annotate(Build(runtime, {}, /*rebuild=*/false, user, progress, cancel).status(), what));
  }
  progress("wait");
  const auto given_up = [&] { return node_.stopping() || (cancel != nullptr && cancel->cancelled()); };
  const auto turn = turns_.TakeUnless(user, given_up);
  if (!turn) return GivenUp(runtime, modules);
  // Within a turn: who has the name is at work on it.
  const std::unique_ptr<InWork> in_work = InWork::Begin(*this, reference, given_up);
  if (in_work == nullptr || given_up()) return GivenUp(runtime, modules);
  if (!rebuild) {
    if (auto there = find(); there.ok()) return Found{*std::move(there), true};
  }
  RK_ASSIGN_OR_RETURN(const std::vector<DependencyImage> images, List());
  const auto there = std::find_if(images.begin(), images.end(), [&](const DependencyImage& image) {
    return image.info.reference == reference;
  });
  // One user's are made one after the other, so that no two count on the same room.
  if (there == images.end() && !modules.empty()) {
    RK_RETURN_IF_ERROR(Annotate(MayHaveOneMore(images, user, layers != nullptr), what));
  }
  const uid_t asked_by = there == images.end() ? user : there->asked_by;
  Order now = order;
  // One that was asked for by itself stays so.
  now.kept = kept || (there != images.end() && there->kept);
  progress("load");
  Stopwatch watch;
  RK_RETURN_IF_ERROR(node_.MakeRuntimeDirectory());
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kCreate));
  const auto on = [&](const absl::StatusOr<DependencyImage>& base) -> absl::StatusOr<DependencyImage> {
    *base_has_gone = absl::IsNotFound(base.status());
    RK_RETURN_IF_ERROR(base.status());
    absl::StatusOr<DependencyImage> made = BuildOn(*store, now, *base, asked_by, progress, cancel);
    if (!made.ok()) {
      const absl::StatusOr<DependencyImage> by_now = FindUnchanged(base->info.reference);
      *base_has_gone =
          absl::IsNotFound(made.status()) || !by_now.ok() || by_now->info.digest != base->info.digest;
    }
    return made;
  };
  absl::StatusOr<DependencyImage> built =
      modules.empty() && layers == nullptr ? BuildBare(*store, runtime, asked_by, progress, cancel)
      : layers != nullptr                  ? on(*below)
                          // Anew means with the libraries of now.
                          : on(BaseFor(runtime, modules, /*bare=*/rebuild));
  // What lies below may have brought modules that the layers have others of: then the owner loads them all.
  if (layers != nullptr && !below->modules.empty() && absl::IsInvalidArgument(built.status()) && !given_up())
    built = on(BaseFor(runtime, modules, /*bare=*/true));
  if (!built.ok() && given_up()) return GivenUp(runtime, modules);
  RK_RETURN_IF_ERROR(built.status());
  Log(LogLevel::kInfo, absl::StrCat("dependency image '", built->info.reference, "' of ", runtime.Name(),
                                    " with ", modules.empty() ? "nothing more" : absl::StrJoin(modules, ", "),
                                    " built in ", absl::StrFormat("%.1f", watch.seconds()), " s"));
  made_(reference);
  return Found{*built, false};
}

absl::StatusOr<DependencyImage> DependencyImages::BaseForLayers(
    const Order& order, const std::function<void(const char* phase)>& progress, const Cancellation* cancel) {
  std::vector<std::string> rest = order.modules;
  std::erase_if(rest, [&](const std::string& module) {
    const std::vector<std::string>& theirs = order.layers->modules;
    return std::find(theirs.begin(), theirs.end(), module) != theirs.end();
  });
  RK_ASSIGN_OR_RETURN(Found found, Cover(order.runtime, rest, order.user, progress, cancel));
  if (!Change(found.image)) return found.image;
  RK_ASSIGN_OR_RETURN(
      found, Build(order.runtime, found.image.modules, /*rebuild=*/false, order.user, progress, cancel));
  return found.image;
}

absl::StatusOr<DependencyImage> DependencyImages::BaseFor(const functions::Runtime& runtime,
                                                          const std::vector<std::string>& modules,
                                                          bool bare) const {
  RK_ASSIGN_OR_RETURN(std::vector<DependencyImage> images, List());
  std::optional<DependencyImage> base;
  for (const DependencyImage& image : images) {
    if (!image.is_shared() || !(image.runtime == runtime) || image.modules == modules ||
        (bare && !image.modules.empty()) || image.MayHaveDrawn() ||
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
    store::Store& store, const Order& order, const DependencyImage& base, uid_t asked_by,
    const std::function<void(const char* phase)>& progress, const Cancellation* cancel) {
  const std::string what = order.What();
  // It may go meanwhile, with its notes; what builds upon it stays whole.
  RK_ASSIGN_OR_RETURN(const std::string below, store.GetNote(base.info.digest, store::kLoadedFilesNote));
  RK_ASSIGN_OR_RETURN(const LoadedFiles loaded_below, LoadedFiles::Decode(below));
  RK_ASSIGN_OR_RETURN(const std::vector<std::string> command, RuntimeCommand(order.runtime, ""));
  const Owner* const owner = order.layers != nullptr ? &order.layers->owner : nullptr;
  RK_ASSIGN_OR_RETURN(
      const ModuleList list,
      ModuleList::Make(InstanceRecords(node_.options().runtime_directory, node_.options().store), owner));
  RK_ASSIGN_OR_RETURN(auto output, ProcessOutput::Make(kOutputShown));
  UniqueFd written = output->TakeWriteEnd();
  RK_RETURN_IF_ERROR(output->Follow());
  LoadedFiles loaded(command);
  restore::CloneOptions copy;
  copy.image = base.info.digest;
  copy.environment = {{"REKINDLE_MORE_DEPS", absl::StrJoin(order.modules, ",")},
                      {kModuleListVariable, list.path()}};
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  copy.stdio = {nothing.get(), written.get(), written.get()};
  // Users choose what is loaded, with root's rights, which copies need to become their owners: it finds
  // nothing that other users have made, neither files nor sockets.
  copy.temporary = TemporaryOn(node_.options(), restore::kMostTemporary);
  copy.network = restore::Network::kOwn;
  ckpt::CaptureOptions capture;
  capture.reference = order.Reference();
  capture.parent = base.info.digest;
  capture.temporary_files = ckpt::kDependencyTemporary;
  DependencyImage built;
  built.runtime = order.runtime;
  built.modules = order.modules;
  built.asked_by = asked_by;
  if (owner != nullptr) {
    // What lies in layers is anybody's: it runs as its owner, and never takes more than a function may.
    std::vector<std::string> paths;
    for (const functions::LayerPtr& layer : order.layers->layers) paths.push_back(layer->path());
    copy.environment["REKINDLE_LAYERS"] = absl::StrJoin(paths, ":");
    copy.temporary.read_only = std::move(paths);
    if (owner->uid != ::geteuid()) {
      copy.environment["REKINDLE_RUN_AS"] = RunAsText(*owner);
      copy.files_owner = *owner;
    }
    if (FunctionInstances::LimitsUsable().ok()) {
      functions::FunctionSpec most;
      most.memory_bytes = functions::kMostMemoryBytes;
      copy.limits = FunctionInstances::LimitsOf(most);
    }
    capture.owner = owner->uid;
    built.layers = DigestsOf(order.layers->layers);
    built.of_layers = order.layers->modules;
    built.run_as = RunAsText(*owner);
    built.kept = order.kept;
  }
  bool ready = false;
  const auto look = [&](pid_t root, bool has_after_restore) {
    ready = true;
    const std::string listed = list.Read();
    built.drawn = DrawnIn(listed);
    loaded.Add(root, listed, list.began(), [&copy](const std::string& path) {
      return restore::LiesInOwnTemporary(path, copy.temporary.keep);
    });
    const std::vector<pid_t> processes = ProcessTree(root);
    if (owner != nullptr && !has_after_restore) {
      if (const auto connection = ConnectionToOthers(processes)) {
        return absl::FailedPreconditionError(
            absl::StrCat(what, ": once loaded it is connected to ", *connection, ", which no copy would be"));
      }
    }
    const absl::Status may = ckpt::CheckTemporaryFiles(absl::StrCat("/proc/", root, "/root"), processes,
                                                       ckpt::kDependencyTemporary);
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
  // The next attempt makes that one anew first.
  if (!ready && IsRefusedForOtherFiles(captured.status())) {
    refused_->Note(base.info.digest, captured.status());
    return absl::NotFoundError(captured.status().message());
  }
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
  std::unique_ptr<const InstanceRecord> record;
  const auto note = [&](pid_t pid) {
    record = std::make_unique<InstanceRecord>(absl::StrCat(records, "/build-", pid, ".pid"), pid, nullptr);
    return absl::OkStatus();
  };
  RK_ASSIGN_OR_RETURN(const pid_t pid, LaunchJob(launch, /*warnings=*/nullptr, note));
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  launch.log_file.Reset();
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
