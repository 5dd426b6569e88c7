#include "ckpt/frozen_files.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/boot_time.h"
#include "base/file.h"
#include "base/file_rights.h"
#include "base/human_units.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "ckpt/criu_files.h"
#include "ckpt/mounts_check.h"
#include "ckpt/outside_files.h"
#include "criu/image_files.h"
#include "criu/lost_names.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::ckpt {
namespace {

// Of the memory that is free, for all of CRIU's images beside the job's memory, deleted files among them.
// Until they are stored there are up to two copies of them, and half of what is free is for the job's memory.
constexpr uint64_t kPartForFiles = 8;
constexpr uint64_t kFewFileBytes = 64u << 20;  // there is room for

absl::Duration AgeOf(const ProcessInfo& process) {
  timespec now;
  if (::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return absl::InfiniteDuration();
  return absl::DurationFromTimespec(now) - absl::Nanoseconds(BoottimeOffsetNanos()) -
         absl::Seconds(static_cast<double>(process.start_ticks) /
                       static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

// With the groups that the process has, whatever the machine knows of its user.
rekindle::Owner UserOf(const ProcessInfo& process) {
  constexpr gid_t kNoGroup = 65534;
  rekindle::Owner user{process.uid, kNoGroup, {}};
  const std::string status = ReadFile(absl::StrCat("/proc/", process.pid, "/status")).value_or("");
  const std::vector<std::string> groups =
      absl::StrSplit(StatusField(status, "Groups"), absl::ByAnyChar(" \t"), absl::SkipWhitespace());
  gid_t group;
  for (const std::string& number : groups) {
    if (absl::SimpleAtoi(number, &group)) user.groups.push_back(group);
  }
  const std::vector<std::string> ids =
      absl::StrSplit(StatusField(status, "Gid"), absl::ByAnyChar(" \t"), absl::SkipWhitespace());
  if (!ids.empty() && absl::SimpleAtoi(ids[0], &group)) user.gid = group;
  return user;
}

// A copy, in which names can be changed.
std::map<std::string, std::string> WithoutFileContents(const std::map<std::string, std::string>& criu_files) {
  std::map<std::string, std::string> small;
  for (const auto& [name, content] : criu_files) {
    if (!criu::HasContent(name)) small.emplace(name, content);
  }
  return small;
}

}  // namespace

FrozenFiles::FrozenFiles(const CaptureOptions& options, const JobInspection& job,
                         const criu::JobNamespaces& namespaces, std::string own_mounts)
    : options_(options),
      job_(job),
      namespaces_(namespaces),
      sees_our_files_(SeeOurFiles(job.pids()) || criu::HasOurPids(job.processes[0].pid)),
      own_mounts_(std::move(own_mounts)),
      tracked_(options.track_paths, sees_our_files_ ? "/" : JobsRoot(), UserOf(job.processes[0]),
               !sees_our_files_) {}

uint64_t FrozenFiles::EstimateContents() const {
  return LooksAtWritten() ? ckpt::EstimateContents(job_.pids(), WrittenOptions()) : 0;
}

void FrozenFiles::LookAhead() {
  if (!LooksAtWritten()) return;
  tracked_.LookAhead();
  WrittenFilesOptions options = WrittenOptions();
  options.readable = FilesTheOwnerMayHave(job_.pids());
  ReadEndingsAhead(job_.pids(), std::move(options));
}

void FrozenFiles::FreezeBegins() {
  if (LooksAtWritten()) leases_ = Leases::BeginReading();
}

FrozenLook FrozenFiles::Look(const std::string& run, uint64_t available_bytes, StagingArena* arena) {
  run_ = run;
  arena_ = arena;
  most_file_bytes_ = std::max(available_bytes / kPartForFiles, kFewFileBytes);
  const absl::Status too_late = absl::UnavailableError("CRIU's images were not complete in time");
  if (LooksAtWritten()) written_ = too_late;
  if (options_.temporary_files) temporary_ = too_late;
  FrozenLook look;
  look.most_file_bytes = most_file_bytes_;
  look.takes_nameless_memory = LooksAtWritten();
  look.at = [this](const std::map<std::string, std::string>& files) {
    if (job_.files_outside.empty()) {
      LookAt(files);
    } else if (const auto named = WithNamesOfOutside(files); named.ok()) {
      LookAt(*named);
    } else {
      lost_names_ = named.status();
    }
    if (options_.temporary_files) temporary_ = TakeTemporary();
  };
  return look;
}

// The small images, in which no file is from outside.
absl::StatusOr<std::map<std::string, std::string>> FrozenFiles::WithNamesOfOutside(
    const std::map<std::string, std::string>& criu_files) const {
  std::map<std::string, std::string> named = WithoutFileContents(criu_files);
  RK_ASSIGN_OR_RETURN(named["files.img"], criu::NameFilesOutside(named["files.img"], job_.files_outside));
  return named;
}

void FrozenFiles::LookAt(const std::map<std::string, std::string>& criu_files) {
  std::vector<pid_t> pids = FrozenProcesses(ContentOf(criu_files, "pstree.img"));
  // It may have become another's, or begun one that is, since it was inspected.
  may_have_it_ = CheckMayHaveImageOf(pids, options_.caller, options_.caller_groups);
  if (!own_mounts_.empty()) LookAtMounts(pids);
  NoteOpened(pids);
  ReadableFiles readable = FilesTheOwnerMayHave(pids);
  lost_names_ = LookAtLostNames(criu_files, run_, JobsRoot(), NameOfJob(),
                                std::min(kGhostLimitBytes, most_file_bytes_), &readable);
  if (sees_our_files_) read_ = ReadFiles::Open(criu_files, &readable);
  socket_folders_ =
      LookAtSocketFolders(criu_files, sees_our_files_ ? "/" : JobsRoot(), job_.processes[0].uid);
  if (!LooksAtWritten()) {
    if (socket_folders_.ok()) socket_folders_->folders.clear();
    return;
  }
  WrittenFilesOptions options = WrittenOptions();
  options.pids = std::move(pids);
  options.readable = std::move(readable);
  options.leases = leases_;
  options.tracked = &tracked_;
  if (!lost_names_.ok() || lost_names_->by_link.empty()) {
    written_ = LookAtWrittenFiles(criu_files, std::move(options), arena_);
    return;
  }
  std::map<std::string, std::string> named = WithoutFileContents(criu_files);
  const absl::Status status = ckpt::PutIntoImages(lost_names_->WithoutContents(), &named);
  options.nameless = lost_names_->nameless;
  written_ = status.ok() ? LookAtWrittenFiles(named, std::move(options), arena_) : status;
}

// CRIU, which is told nothing of what is mounted there, asks for none of this.
void FrozenFiles::LookAtMounts(std::vector<pid_t> pids) {
  const auto root = std::find(pids.begin(), pids.end(), job_.processes[0].pid);
  std::iter_swap(pids.begin(), root);
  mounts_ = CheckMounts(pids, namespaces_, nullptr);
  if (mounts_.ok() && OwnMountsOf(pids.front()) != own_mounts_)
    mounts_ = absl::AbortedError("they hear of others in another way");
  if (!mounts_.ok()) {
    mounts_ =
        absl::AbortedError(absl::StrCat("capturing process ", job_.processes[0].pid,
                                        ": what is mounted for it has changed while it was being captured; "
                                        "it runs on, try again: ",
                                        mounts_.message()));
  }
  for (const auto& [resource, path] : FilesOfOutsideMounts(pids)) {
    const auto before = job_.files_outside.find(resource);
    if (before != job_.files_outside.end() && before->second == path) files_outside_.insert(*before);
  }
}

// `tree`: CRIU's pstree.img, which knows of processes that the inspection did not see.
std::vector<pid_t> FrozenFiles::FrozenProcesses(absl::string_view tree) const {
  std::vector<pid_t> pids = job_.pids();
  absl::StatusOr<std::vector<criu::PstreeEntry>> entries = criu::ParsePstree(tree);
  if (entries.ok()) {
    for (const criu::PstreeEntry& entry : *entries) {
      if (auto pid = namespaces_.Outside(entry.pid); pid.ok()) pids.push_back(*pid);
    }
  }
  // Most are in both, and each is looked at while the job stands still.
  std::sort(pids.begin(), pids.end());
  pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
  return pids;
}

// What of it can't be looked at, a restore asks the job's rights for.
void FrozenFiles::NoteOpened(const std::vector<pid_t>& pids) {
  if (job_.processes[0].uid == 0) return;
  for (const pid_t pid : pids) {
    const auto files = FilesOpenedBy(pid, OpenedFilesOf::kDescriptorsAndFolders);
    if (!files.ok()) continue;
    for (const OpenedFile& file : *files) {
      if (file.identity.born_ns != 0) opened_[file.identity] |= file.access;
    }
  }
}

ReadableFiles FrozenFiles::FilesTheOwnerMayHave(std::vector<pid_t> pids) const {
  if (options_.caller == 0) return {};
  return ReadableFiles(job_.processes[0].uid, std::move(pids));
}

WrittenFilesOptions FrozenFiles::WrittenOptions() const {
  WrittenFilesOptions options;
  options.contents = options_.file_contents;
  options.ignore_paths = options_.ignore_paths;
  options.before = before_;
  options.age = AgeOf(job_.processes[0]);
  if (options_.temporary_files) options.ignore_paths.insert(options.ignore_paths.end(), {"/tmp", "/var/tmp"});
  if (!sees_our_files_) options.sandbox_root = JobsRoot();
  return options;
}

absl::StatusOr<TakenTemporaryFiles> FrozenFiles::TakeTemporary() const {
  // Names of CRIU's for the time of the dump, and memory that the image has. A job's own /var/tmp is its
  // /tmp.
  std::set<std::string> without;
  if (lost_names_.ok()) {
    for (const std::string& path : lost_names_->on_disk)
      without.insert(absl::StartsWith(path, "/var/tmp/") ? path.substr(sizeof "/var" - 1) : path);
  }
  if (written_.ok()) {
    for (const v1::WrittenFile& file : written_->files) {
      if (file.shared_memory()) without.insert(file.path());
    }
  }
  return TakeTemporaryFiles(JobsRoot(), without, *options_.temporary_files);
}

absl::Status FrozenFiles::PutIntoImages(std::map<std::string, std::string>* criu_files,
                                        std::vector<std::string>* warnings) {
  RK_RETURN_IF_ERROR(lost_names_.status());
  if (options_.caller != 0) RK_RETURN_IF_ERROR(may_have_it_);
  if (options_.stop) RemoveExtraNames(*lost_names_, JobsRoot());
  warnings->insert(warnings->end(), lost_names_->warnings.begin(), lost_names_->warnings.end());
  if (!own_mounts_.empty()) RK_RETURN_IF_ERROR(mounts_);
  RK_RETURN_IF_ERROR(CheckNamelessMemory());
  if (!job_.files_outside.empty()) {
    std::string& files = (*criu_files)["files.img"];
    RK_ASSIGN_OR_RETURN(files, criu::NameFilesOutside(files, files_outside_));
    RK_RETURN_IF_ERROR(CheckFilesOutside(files));
  }
  RK_RETURN_IF_ERROR(ckpt::PutIntoImages(*std::exchange(lost_names_, LostNames()), criu_files));
  return temporary_.status();
}

// CRIU looks after the names of the others.
absl::Status FrozenFiles::CheckFilesOutside(absl::string_view files) const {
  RK_ASSIGN_OR_RETURN(const std::set<std::string> still, criu::FilesStillOutside(files));
  for (const auto& [resource, path] : job_.files_outside) {
    if (!still.contains(resource)) continue;
    return absl::AbortedError(absl::StrCat("capturing process ", job_.processes[0].pid, ": ", path,
                                           ", which it has open, was renamed or removed while it was being "
                                           "captured; it runs on, try again"));
  }
  return absl::OkStatus();
}

// It is nowhere else.
absl::Status FrozenFiles::CheckNamelessMemory() const {
  if (lost_names_->nameless.empty()) return absl::OkStatus();
  RK_RETURN_IF_ERROR(Annotate(written_.status(), "reading the job's shared memory"));
  size_t found = 0;
  for (size_t i = 0; i < written_->files.size(); ++i) {
    const v1::WrittenFile& file = written_->files[i];
    if (!file.nameless()) continue;
    ++found;
    if (written_->contents.contains(i)) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("the job's shared memory without a name (", FormatBytes(file.size()),
                     ") could not be read: ", absl::StrJoin(written_->warnings, "; ")));
  }
  if (found == lost_names_->nameless.size()) return absl::OkStatus();
  return absl::InternalError("shared memory of the job that has no name could not be looked at");
}

void FrozenFiles::RecordOpened(v1::JobManifest* manifest) const {
  read_.AddTo(manifest);
  for (const auto& [file, access] : opened_) {
    v1::OpenedInode* opened = manifest->add_opened();
    opened->set_device(file.device);
    opened->set_inode(file.inode);
    opened->set_born_ns(file.born_ns);
    opened->set_access(static_cast<uint32_t>(access));
  }
}

absl::Status FrozenFiles::AddToImage(store::ImageWriter& writer, v1::JobManifest* manifest,
                                     std::vector<std::string>* warnings) {
  RK_RETURN_IF_ERROR(AddWritten(writer, manifest, warnings));
  AddSocketFolders(manifest, warnings);
  if (!options_.temporary_files) return absl::OkStatus();
  *manifest->mutable_temporary() = std::move(temporary_->record);
  return temporary_->contents.empty() ? absl::OkStatus()
                                      : writer.AddBlob(v1::kTemporaryContents, temporary_->contents);
}

absl::Status FrozenFiles::AddWritten(store::ImageWriter& writer, v1::JobManifest* manifest,
                                     std::vector<std::string>* warnings) {
  if (!written_.ok()) {
    warnings->push_back(
        absl::StrCat("files that the job writes are not recorded, so that a restore can't roll them back: ",
                     written_.status().message()));
    return absl::OkStatus();
  }
  for (const std::string& path : options_.track_paths) manifest->add_track_paths(path);
  manifest->set_tracks_own_mounts(!options_.track_paths.empty() && !sees_our_files_);
  if ((options_.file_contents || !options_.track_paths.empty()) && !LooksAtWritten()) {
    warnings->push_back(
        "the job has all its namespaces for itself: its files are not recorded, and a restore does not roll "
        "them back");
  }
  warnings->insert(warnings->end(), written_->warnings.begin(), written_->warnings.end());
  return ckpt::AddToImage(*written_, writer, manifest);
}

void FrozenFiles::AddSocketFolders(v1::JobManifest* manifest, std::vector<std::string>* warnings) {
  if (!socket_folders_.ok()) {
    warnings->push_back(absl::StrCat(
        "folders in which the job has Unix sockets are not recorded, so that they must be there when it is "
        "restored: ",
        socket_folders_.status().message()));
    return;
  }
  warnings->insert(warnings->end(), socket_folders_->warnings.begin(), socket_folders_->warnings.end());
  for (v1::SocketFolder& folder : socket_folders_->folders)
    *manifest->add_socket_folders() = std::move(folder);
  for (std::string& socket : socket_folders_->placed) manifest->add_placed_sockets(std::move(socket));
}

std::string FrozenFiles::JobsRoot() const { return absl::StrCat("/proc/", options_.pid, "/root"); }

std::string FrozenFiles::NameOfJob() const {
  return absl::StrCat(job_.processes[0].pid, ".", job_.processes[0].start_ticks);
}

}  // namespace rekindle::ckpt
