#include "restore/prepared_images.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/cgroup_memory.h"
#include "base/clock.h"
#include "base/machine.h"
#include "base/parallel.h"
#include "base/status.h"
#include "rekindle/v1/image_layout.h"
#include "restore/compatibility.h"
#include "restore/criu_files.h"
#include "restore/files_behind_links.h"
#include "restore/job_logs.h"
#include "restore/opened_files_check.h"
#include "restore/restore.h"

namespace rekindle::restore {
namespace {

// Of the memory that is free: what may be kept of images' shared memory for their next copies. It is in
// nobody's limit, and can't be taken back by the kernel.
constexpr uint64_t kPartForSharedMemory = 8;

absl::StatusOr<bool> Listens(const store::ImageReader& image) {
  RK_ASSIGN_OR_RETURN(std::string files, ReadCriuFile(image, "files.img"));
  return criu::HasListeningSocket(files);
}

absl::StatusOr<std::vector<criu::RegularFile>> FilesOf(const store::ImageReader& image) {
  RK_ASSIGN_OR_RETURN(const std::string files, ReadCriuFile(image, "files.img"));
  RK_ASSIGN_OR_RETURN(const std::string remaps, ReadCriuFileIfAny(image, "remap-fpath.img"));
  return criu::ParseRegularFiles(files, remaps);
}

absl::Status CheckPrograms(const BoundPaths& bound, FileIdentities::Checked checked,
                           PreparedImage& prepared) {
  std::vector<criu::RegularFile> files = *prepared.files;
  if (prepared.temporary != nullptr)
    std::erase_if(files, [&](const criu::RegularFile& file) {
      return prepared.temporary->Has(file.path) && !bound.Cover(file.path);
    });
  std::multimap<std::string, std::string> names;  // by where they lie
  std::set<std::string> covered;                  // of these places: what another file of the image is there
  for (criu::RegularFile& file : files) {
    const std::string name = std::exchange(file.path, bound.OnMachine(file.path));
    names.emplace(file.path, name);
    if (bound.Cover(name)) covered.insert(file.path);
  }
  for (const std::string& place : covered) checked.erase(place);
  RK_ASSIGN_OR_RETURN(prepared.programs, FileIdentities::Check(files, checked));
  for (const std::string& path : prepared.programs.known()) {
    for (auto [at, end] = names.equal_range(path); at != end; ++at)
      prepared.known_programs.insert(at->second);
  }
  prepared.uncovered = prepared.programs.Lasting();
  for (const std::string& place : covered) prepared.uncovered.erase(place);
  return absl::OkStatus();
}

// A needed file, and the folder that it works in, may lie in what is a copy's own: then it has them.
void ForgetOwn(const TemporaryFiles& own, const BoundPaths& bound, v1::JobManifest* manifest) {
  const auto is_own = [&](const std::string& path) { return own.Has(path) && !bound.Cover(path); };
  if (is_own(manifest->working_directory())) manifest->clear_working_directory();
  const auto files = manifest->mutable_files();
  for (int i = files->size(); i-- > 0;) {
    if (is_own(files->at(i).path())) files->DeleteSubrange(i, 1);
  }
}

// `checked`: see FileIdentities::Check.
absl::Status CheckFilesOf(const BoundPaths& bound, FileIdentities::Checked checked, PreparedImage& prepared) {
  RK_RETURN_IF_ERROR(CheckPrograms(bound, std::move(checked), prepared));
  prepared.locks = prepared.locks_of_image;
  for (JobLock& lock : prepared.locks) lock.path = bound.OnMachine(lock.path);
  v1::JobManifest manifest = prepared.manifest;
  const std::set<std::string> shared_memory = prepared.shared_memory->paths();
  manifest.clear_files();
  for (const v1::NeededFile& file : prepared.manifest.files()) {
    if (shared_memory.contains(file.path())) continue;
    v1::NeededFile& needed = *manifest.add_files() = file;
    // What is put in its place is to be another one.
    if (bound.Cover(file.path())) {
      needed.clear_middle();
      needed.clear_inode();
    }
  }
  if (prepared.temporary) ForgetOwn(*prepared.temporary, bound, &manifest);
  std::set<std::string> elsewhere = FilesReplacedByLog(manifest);
  for (const v1::NeededFile& file : manifest.files()) {
    if (bound.Cover(file.path())) elsewhere.insert(file.path());
  }
  RK_RETURN_IF_ERROR(
      CheckLinks(manifest, prepared.user, SeenFrom::kMachine, elsewhere, {}, CheckedFor::kClone));
  manifest = bound.OnMachine(std::move(manifest));
  std::vector<std::string> warnings;
  const auto check = [&](const std::set<std::string>& replaced) {
    return CheckFiles(manifest, prepared.user, &warnings, SeenFrom::kMachine, NeededFiles::kAll, replaced, {},
                      {}, EditedFiles::kRefuseMapped, CheckedFor::kClone);
  };
  prepared.outputs = check({});
  return prepared.outputs.ok() ? absl::OkStatus() : check(FilesReplacedByLog(manifest));
}

// Where they lie over files of the image.
BoundPaths BindsOver(const v1::JobManifest& manifest, const BoundPaths& binds) {
  return binds.CoverSomethingOf(manifest) ? binds : BoundPaths();
}

absl::Status AsWithBinds(const absl::Status& status, const BoundPaths& bound) {
  return bound.empty() ? status : Annotate(status, "as a copy with these binds (--bind) has them");
}

// Of PreparedImages::with_binds_.
std::string NameWithBinds(const std::string& digest, const BoundPaths& bound) {
  return absl::StrCat(digest, "\n", bound.Text());
}
std::string DigestOf(const std::string& name) { return name.substr(0, name.find('\n')); }

absl::StatusOr<bool> MayStandBy(const store::ImageReader& image, const v1::JobManifest& manifest) {
  if (manifest.control_sockets().empty()) return false;
  for (const store::ObjectInfo& object : image.objects()) {
    absl::string_view name = object.name;
    if (object.paged || !absl::ConsumePrefix(&name, v1::kCriuFilePrefix)) continue;
    absl::StatusOr<bool> timer = false;
    if (absl::StartsWith(name, "core-")) {
      RK_ASSIGN_OR_RETURN(std::string content, image.ReadBlob(object.name));
      timer = criu::HasArmedTimer(content);
    } else if (name == "files.img") {
      RK_ASSIGN_OR_RETURN(std::string content, image.ReadBlob(object.name));
      timer = criu::HasArmedTimerFile(content);
    }
    RK_RETURN_IF_ERROR(timer.status());
    if (*timer) return false;
  }
  return true;
}

}  // namespace

PreparedImages::Image PreparedImages::Kept(const std::string& image, const BoundPaths& binds) {
  if (binds.empty()) return UnchangedIn(&PreparedImages::prepared_, image);
  Image with_binds = UnchangedIn(&PreparedImages::with_binds_, NameWithBinds(image, binds));
  if (with_binds != nullptr) return with_binds;
  Image alone = UnchangedIn(&PreparedImages::prepared_, image);
  return alone != nullptr && !binds.CoverSomethingOf(alone->manifest) ? alone : nullptr;
}

PreparedImages::Image PreparedImages::UnchangedIn(Images PreparedImages::*images, const std::string& name) {
  Image found;
  {
    absl::MutexLock lock(&mutex_);
    found = (this->*images).Use(name);
    // It goes on being used, and with it what it shares.
    if (images == &PreparedImages::with_binds_ && found != nullptr) prepared_.Use(found->info.digest);
  }
  if (found == nullptr || !found->checked) return nullptr;
  if (found->programs.Unchanged()) return found;
  Images::Gone changed, orphans;  // not destroyed under the lock
  absl::MutexLock lock(&mutex_);
  if ((this->*images).Find(name) == found) changed = (this->*images).Remove(name);
  orphans = TakeOrphans();
  return nullptr;
}

PreparedImages::Images::Gone PreparedImages::TakeOrphans() {
  Images::Gone gone;
  for (const std::string& name : with_binds_.names()) {
    if (prepared_.Find(DigestOf(name)) != nullptr) continue;
    for (auto& image : with_binds_.Remove(name)) gone.push_back(std::move(image));
  }
  return gone;
}

void PreparedImages::Keep(const std::string& digest, const BoundPaths& binds, Image image) {
  const BoundPaths bound = BindsOver(image->manifest, binds);
  const uint64_t room = OwnAvailableMemoryBytes().value_or(0) / kPartForSharedMemory;
  // The files are those of one copy alone.
  auto of_image = image;
  if (!bound.empty() || !image->outputs.ok()) {
    auto unchecked = std::make_shared<PreparedImage>(*image);
    unchecked->checked = false;
    unchecked->programs = FileIdentities();
    of_image = std::move(unchecked);
  }
  Images::Gone gone, more, orphans;  // not destroyed under the lock
  absl::MutexLock lock(&mutex_);
  if (of_image->checked || prepared_.Use(digest) == nullptr)
    gone = prepared_.Keep(digest, of_image, of_image->bytes(), room);
  // When its outputs are back it is another.
  if (!bound.empty() && image->outputs.ok())
    more = with_binds_.Keep(NameWithBinds(digest, bound), std::move(image), 0, room);
  orphans = TakeOrphans();
}

PreparedImages::Image PreparedImages::Find(const std::string& image) const {
  absl::MutexLock lock(&mutex_);
  return prepared_.Find(image);
}

std::vector<std::string> PreparedImages::names() const {
  absl::MutexLock lock(&mutex_);
  return prepared_.names();
}

void PreparedImages::Forget(const std::string& image) {
  Images::Gone forgotten, orphans;  // not destroyed under the lock
  absl::MutexLock lock(&mutex_);
  forgotten = prepared_.Remove(image);
  orphans = TakeOrphans();
}

void PreparedImages::ForgetAll() {
  Images::Gone forgotten, with_binds;  // not destroyed under the lock
  absl::MutexLock lock(&mutex_);
  forgotten = prepared_.RemoveAll();
  with_binds = with_binds_.RemoveAll();
}

absl::StatusOr<PreparedImages::Image> PreparedImages::Prepare(
    store::Store& store, const criu::Installation& criu, const std::string& image, const BoundPaths& binds,
    const std::vector<std::string>& kept, std::optional<FilePrefetch>* prefetch, Timeline* timeline) {
  int64_t begin = MonotonicNanos();
  auto step = [&](const char* name, std::map<std::string, int64_t> numbers = {}) {
    timeline->push_back(SpanSince(begin, "rekindle", "prepare", name, std::move(numbers)));
    begin = MonotonicNanos();
  };
  auto prepared = std::make_shared<PreparedImage>();
  RK_ASSIGN_OR_RETURN(std::unique_ptr<store::ImageReader> reader, store.OpenImage(image));
  prepared->info = reader->info();
  RK_ASSIGN_OR_RETURN(prepared->manifest, ReadJobManifest(*reader));
  if (prepared->manifest.has_gpu()) {
    return absl::UnimplementedError(absl::StrCat(
        "cloning ", image, ": it has GPU state, which only one copy could have; restore it without --clone"));
  }
  const auto& stdio = prepared->manifest.stdio();
  if (prepared->manifest.externals_size() > 0 ||
      std::any_of(stdio.begin(), stdio.end(),
                  [](const v1::StdioSlot& slot) { return slot.kind() == "tty"; })) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cloning ", prepared->info.reference,
        ": the job had a terminal, which its copies can't share; take an image of it started with "
        "'rekindle run', or with input and output that are no terminal"));
  }
  RK_ASSIGN_OR_RETURN(prepared->users, UsersOf(*reader));
  // What an administrator has captured of others is not its user's.
  if (const uid_t owner = prepared->info.owner; owner != 0 && owner == prepared->manifest.uid()) {
    RK_RETURN_IF_ERROR(
        Annotate(CheckAllAreHis(prepared->users, owner), absl::StrCat("cloning ", prepared->info.reference)));
  }
  RK_ASSIGN_OR_RETURN(prepared->user, UserWithBounds(*reader, prepared->manifest));
  RK_ASSIGN_OR_RETURN(prepared->listens, Listens(*reader));
  RK_ASSIGN_OR_RETURN(prepared->locks_of_image, LocksOfJob(*reader));
  RK_ASSIGN_OR_RETURN(auto files, FilesOf(*reader));
  prepared->files = std::make_shared<const std::vector<criu::RegularFile>>(std::move(files));
  RK_ASSIGN_OR_RETURN(prepared->temporary, TemporaryFiles::Read(*reader, prepared->manifest, kept));
  if (prepared->temporary) {
    std::erase_if(prepared->locks_of_image,
                  [own = prepared->temporary](const JobLock& lock) { return own->Has(lock.path); });
  }
  if (const auto known = KnownOf(image)) {
    prepared->shared_memory = known->shared_memory;
  } else {
    RK_ASSIGN_OR_RETURN(auto shared_memory, CloneSharedMemory::Read(*reader, prepared->manifest));
    prepared->shared_memory = std::make_shared<const CloneSharedMemory>(std::move(shared_memory));
  }
  const BoundPaths bound = BindsOver(prepared->manifest, binds);
  RK_ASSIGN_OR_RETURN(prepared->may_stand_by, MayStandBy(*reader, prepared->manifest));
  // A copy that nobody has asked for must not keep others from their files.
  prepared->may_stand_by &= prepared->locks_of_image.empty();
  step("image's records");
  RK_ASSIGN_OR_RETURN(Machine machine, ThisMachine());
  RK_RETURN_IF_ERROR(CheckMachine(prepared->manifest, machine, criu.version));
  step("machine");
  // Both mostly wait for the disk.
  absl::Status checked;
  absl::StatusOr<ImageDirectory> directory = absl::UnknownError("");
  absl::StatusOr<std::vector<TouchedFile>> touched = absl::UnknownError("");
  Timeline of_directory;
  InParallel(2, [&](size_t part) {
    if (part == 0) {
      touched = ReadTouchedFiles(store, image);
      checked = AsWithBinds(
          CheckFilesOf(bound, touched.ok() ? CheckedOf(*touched) : FileIdentities::Checked(), *prepared),
          bound);
      step("programs and files", {{"opened", static_cast<int64_t>(prepared->programs.opened())}});
    } else {
      const int64_t directory_begin = MonotonicNanos();
      std::atomic<uint64_t> bytes{0};
      directory =
          ImageDirectory::Make(*reader, prepared->manifest, runtime_directory_, PagesWanted::kLazy, &bytes);
      of_directory.push_back(
          SpanSince(directory_begin, "rekindle", "prepare CRIU's images", "CRIU's images"));
    }
  });
  std::move(of_directory.begin(), of_directory.end(), std::back_inserter(*timeline));
  if (directory.ok()) RK_RETURN_IF_ERROR(CheckIsNoFirstProcess(prepared->info, directory->tree()));
  RK_RETURN_IF_ERROR(CheckHasNoOtherNamespaces(*reader));
  RK_RETURN_IF_ERROR(checked);
  RK_RETURN_IF_ERROR(directory.status());
  // Much is read for this, so not before what all the rest waits for.
  if (touched.ok()) prefetch->emplace(*std::move(touched));
  RK_RETURN_IF_ERROR(directory->ForgetBuildIds(prepared->known_programs));
  prepared->directory = std::make_shared<const ImageDirectory>(*std::move(directory));
  Keep(image, binds, prepared);
  return prepared;
}

PreparedImages::Image PreparedImages::KnownOf(const std::string& image) {
  absl::MutexLock lock(&mutex_);
  return prepared_.Use(image);
}

absl::StatusOr<PreparedImages::Image> PreparedImages::PrepareAgain(const std::string& image,
                                                                   const BoundPaths& binds,
                                                                   Timeline* timeline) {
  const int64_t begin = MonotonicNanos();
  const Image known = KnownOf(image);
  if (known == nullptr) return absl::NotFoundError("it was not prepared before");
  const BoundPaths bound = BindsOver(known->manifest, binds);
  auto prepared = std::make_shared<PreparedImage>(*known);
  prepared->checked = true;
  prepared->known_programs.clear();
  RK_RETURN_IF_ERROR(AsWithBinds(CheckFilesOf(bound, known->uncovered, *prepared), bound));
  if (prepared->known_programs != known->known_programs)
    return absl::NotFoundError("CRIU looks at other programs");
  timeline->push_back(SpanSince(begin, "rekindle", "prepare", "programs and files",
                                {{"opened", static_cast<int64_t>(prepared->programs.opened())}}));
  Keep(image, binds, prepared);
  return prepared;
}

}  // namespace rekindle::restore
