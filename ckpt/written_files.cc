#include "ckpt/written_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/database_files.h"
#include "base/file.h"
#include "base/file_beginning.h"
#include "base/human_units.h"
#include "base/open_in_root.h"
#include "base/opened_files.h"
#include "base/parallel.h"
#include "base/path_below.h"
#include "base/permission_bits.h"
#include "base/positioned_io.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "ckpt/criu_files.h"
#include "criu/image_files.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::ckpt {
namespace {

bool IsNew(int64_t born_unix_ns, absl::Duration until_age) {
  return born_unix_ns != 0 && absl::Nanoseconds(UnixNanos() - born_unix_ns) < until_age;
}

bool IsBelowAny(absl::string_view path, const std::vector<std::string>& folders) {
  return std::any_of(folders.begin(), folders.end(),
                     [&](const std::string& folder) { return IsBelow(path, folder); });
}

// Is this a name that a restore may look for? What the kernel makes up is not; /dev has no files but
// /dev/shm.
bool IsOnDisk(absl::string_view path) {
  if (path.empty() || path[0] != '/') return false;
  if (absl::StartsWith(path, "/dev/")) return absl::StartsWith(path, "/dev/shm/");
  return !absl::StartsWith(path, "/proc/") && !absl::StartsWith(path, "/sys/");
}

bool IsInSharedMemory(absl::string_view path) { return absl::StartsWith(path, "/dev/shm/"); }

// Where that is what the job knows by this path.
absl::StatusOr<UniqueFd> PlaceOf(const std::string& path, const WrittenFilesOptions& options) {
  auto nameless = options.nameless.find(path);
  if (nameless != options.nameless.end()) return OpenFile(nameless->second, O_PATH);
  auto gone = options.just_gone.find(path);
  if (gone != options.just_gone.end()) return OpenFile(gone->second, O_PATH);
  return OpenInRoot(options.sandbox_root.empty() ? "/" : options.sandbox_root, path);
}

// At the names of an image, one after the other, while the job stands still.
constexpr int kMostLooksForGone = 8;

// Where the job has that open whose name is gone. Empty: it has not, or it has several, as of a log that was
// rotated away again and again: which one is meant the name does not say.
std::string DeletedFileOf(const std::vector<pid_t>& pids, absl::string_view path) {
  std::string found;
  struct stat first = {};
  for (const pid_t pid : pids) {
    const auto descriptors = ForeignDescriptorsOf(pid);
    for (const ForeignDescriptor& descriptor : descriptors.value_or(std::vector<ForeignDescriptor>())) {
      const std::string link = ReadLink(descriptor.link()).value_or("");
      absl::string_view name = link;
      if (!absl::ConsumeSuffix(&name, kDeletedSuffix) || name != path) continue;
      struct stat info;
      if (::stat(descriptor.link().c_str(), &info) != 0) continue;
      if (found.empty()) {
        found = descriptor.link();
        first = info;
      } else if (info.st_dev != first.st_dev || info.st_ino != first.st_ino) {
        return "";
      }
    }
  }
  return found;
}

void RecordFolder(const WrittenFilesOptions& options, v1::WrittenFile* file) {
  const std::string folder = file->path().substr(0, file->path().rfind('/'));
  const absl::StatusOr<UniqueFd> place = PlaceOf(folder.empty() ? "/" : folder, options);
  struct stat info;
  if (!place.ok() || ::fstat(place->get(), &info) != 0) return;
  file->mutable_folder()->set_device(info.st_dev);
  file->mutable_folder()->set_mode(info.st_mode & kPermissionBits);
  file->mutable_folder()->set_uid(info.st_uid);
  file->mutable_folder()->set_gid(info.st_gid);
}

// CRIU's numbers of the files that are written through a mapping.
absl::StatusOr<std::set<uint64_t>> MappedFiles(const std::map<std::string, std::string>& criu_files) {
  std::set<uint64_t> ids;
  for (auto it = criu_files.lower_bound("mm-"); it != criu_files.end() && absl::StartsWith(it->first, "mm-");
       ++it) {
    RK_ASSIGN_OR_RETURN(std::vector<criu::Vma> areas, criu::ParseMm(it->second));
    for (const criu::Vma& area : areas) {
      if (area.writable_file()) ids.insert(area.shmid);
    }
  }
  return ids;
}

// A file, by all descriptors and mappings that may write it.
struct Found {
  v1::WrittenFile file;
  bool mapped = false;
  bool from_its_beginning = false;  // somebody writes it who has begun it anew
  bool begun_lately = false;        // and had not when the image before was taken
  uint64_t allocated_bytes = 0;
};

// Is the descriptor used to write elsewhere than at the file's end? Only O_APPEND rules it out, and nothing
// tells of writes at a given place (pwrite). A descriptor that can't read and stands at the end is that of a
// program that writes one line after the other: almost none goes back from there.
bool WritesInPlace(const criu::RegularFile& file, uint64_t size) {
  return !file.append && (file.readable || file.position != size);
}

// Of such a program that is no matter of how a file is opened: it was emptied then, if it was there already.
bool WritesFromItsBeginning(const criu::RegularFile& file, uint64_t size) {
  return file.written && !file.append && !WritesInPlace(file, size);
}

// Of a descriptor of a process that runs.
bool OpenForAppending(pid_t pid, const std::string& fd) {
  const std::string said = ReadFile(absl::StrCat("/proc/", pid, "/fdinfo/", fd)).value_or("");
  return (std::strtoul(StatusField(said, "flags").c_str(), nullptr, 8) & O_APPEND) != 0;
}

// Which files the job had not yet begun when the image before was taken. A file that is written as a whole,
// again and again under one name, need be neither new nor small, and yet what it has is lost when the next
// version is begun.
class EarlierFiles {
 public:
  explicit EarlierFiles(const WrittenFilesOptions& options)
      : known_(options.before.has_value()),
        all_begun_lately_(!known_ && options.age < options.new_until_age) {
    if (!known_) return;
    for (const v1::WrittenFile& file : *options.before) files_[{file.device(), file.inode()}] = &file;
  }

  // `fd` gives one to read it by, if need be; not valid: it can't be read, and counts as the one it was.
  bool BegunSince(const v1::WrittenFile& file, absl::FunctionRef<UniqueFd()> fd) const {
    if (!known_) return all_begun_lately_;
    const auto it = files_.find({file.device(), file.inode()});
    if (it == files_.end()) return true;
    const v1::WrittenFile& before = *it->second;
    if (before.born_ns() != file.born_ns() || before.size() > file.size()) return true;
    // One that was written in place has none: a program that writes its header once more when it has written
    // the rest stands now there, now at its end.
    if (before.ending() == 0) return before.size() == 0;
    const UniqueFd open = fd();
    const absl::StatusOr<uint64_t> ending =
        open.valid() ? FileEnding(open.get(), before.size()) : absl::NotFoundError("");
    return ending.ok() && *ending != before.ending();
  }

 private:
  const bool known_, all_begun_lately_;
  std::map<std::pair<uint64_t, uint64_t>, const v1::WrittenFile*> files_;
};

// Those whose endings are read while the job stands still.
constexpr size_t kMostEndings = 1000;

// To be read; not valid: it can't be, or must not.
UniqueFd OpenWritten(const v1::WrittenFile& file, WrittenFilesOptions& options) {
  const absl::StatusOr<UniqueFd> place = PlaceOf(file.path(), options);
  struct stat info;
  if (!place.ok() || ::fstat(place->get(), &info) != 0 || info.st_dev != file.device() ||
      info.st_ino != file.inode() || !options.readable.Has(info) ||
      options.leases->Has(file.device(), file.inode()))
    return UniqueFd();
  return OpenFileAt(place->get()).value_or(UniqueFd());
}

// Reads of the files what tells whether they are the same ones later.
class EndingReader {
 public:
  explicit EndingReader(WrittenFilesOptions& options) : options_(options), earlier_(options) {}

  void Read(Found* found) {
    v1::WrittenFile& file = found->file;
    if (file.in_place() || file.size() == 0 || file.nameless()) return;
    UniqueFd open = count_++ < kMostEndings ? OpenWritten(file, options_) : UniqueFd();
    if (open.valid()) file.set_ending(FileEnding(open.get(), file.size()).value_or(0));
    found->begun_lately =
        found->from_its_beginning && earlier_.BegunSince(file, [&open] { return std::move(open); });
  }

 private:
  WrittenFilesOptions& options_;
  const EarlierFiles earlier_;
  size_t count_ = 0;
};

// The files by inode: one may have several names, and several descriptors for each.
absl::StatusOr<std::vector<Found>> FindWritten(const std::map<std::string, std::string>& criu_files,
                                               WrittenFilesOptions& options,
                                               std::vector<std::string>* warnings) {
  std::vector<Found> result;
  std::vector<criu::RegularFile> files;
  if (const absl::string_view opened = ContentOf(criu_files, "files.img"); !opened.empty()) {
    RK_ASSIGN_OR_RETURN(files, criu::ParseRegularFiles(opened, ContentOf(criu_files, "remap-fpath.img")));
  }
  RK_ASSIGN_OR_RETURN(const std::set<uint64_t> mapped, MappedFiles(criu_files));
  std::map<std::pair<uint64_t, uint64_t>, Found> by_inode;
  int looks_for_gone = 0;
  for (const criu::RegularFile& file : files) {
    const bool is_mapped = mapped.contains(file.id);
    const bool nameless = options.nameless.contains(file.path);
    if (!nameless) {
      if (file.ghost || (!file.written && !is_mapped) || !IsOnDisk(file.path)) continue;
    }
    struct stat info;
    absl::StatusOr<UniqueFd> place = PlaceOf(file.path, options);
    if (absl::IsNotFound(place.status()) && looks_for_gone++ < kMostLooksForGone) {
      std::string gone = DeletedFileOf(options.pids, file.path);
      if (!gone.empty()) {
        options.just_gone.emplace(file.path, std::move(gone));
        place = PlaceOf(file.path, options);
      }
    }
    if (!place.ok() || ::fstat(place->get(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    Found& found = by_inode[{info.st_dev, info.st_ino}];
    v1::WrittenFile& record = found.file;
    if (record.path().empty() || file.path < record.path()) record.set_path(file.path);
    record.set_size(file.has_size ? file.size : static_cast<uint64_t>(info.st_size));
    record.set_device(info.st_dev);
    record.set_inode(info.st_ino);
    record.set_modified_ns(Nanos(info.st_mtim));
    record.set_mode(info.st_mode & kPermissionBits);
    record.set_uid(info.st_uid);
    record.set_gid(info.st_gid);
    record.set_in_place(record.in_place() || is_mapped || WritesInPlace(file, record.size()));
    found.from_its_beginning |= WritesFromItsBeginning(file, record.size());
    record.set_nameless(nameless);
    record.set_in_own_mounts(!options.sandbox_root.empty());
    if (!nameless) record.set_born_ns(BornUnixNanos(place->get(), "", AT_EMPTY_PATH));
    found.mapped |= is_mapped;
    found.allocated_bytes = static_cast<uint64_t>(info.st_blocks) * 512;
  }
  EndingReader endings(options);
  for (auto& [inode, found] : by_inode) {
    endings.Read(&found);
    if (found.mapped) found.file.set_modified_ns(0);
    if (!found.file.nameless()) RecordFolder(options, &found.file);
    found.file.set_shared_memory(found.file.nameless() ||
                                 (found.mapped && IsInSharedMemory(found.file.path())));
    found.file.set_is_new(IsNew(found.file.born_ns(), options.new_until_age));
    result.push_back(std::move(found));
  }
  if (options.tracked != nullptr) {
    for (v1::WrittenFile& file : options.tracked->Look(options.leases, warnings)) {
      if (!by_inode.contains({file.device(), file.inode()})) result.emplace_back().file = std::move(file);
    }
  }
  std::sort(result.begin(), result.end(),
            [](const Found& a, const Found& b) { return a.file.path() < b.file.path(); });
  return result;
}

uint64_t RoundUpToPages(uint64_t bytes) {
  return (bytes + store::kPageSize - 1) / store::kPageSize * store::kPageSize;
}

// What several contents may take together.
struct Room {
  explicit Room(uint64_t bytes) : limit(bytes), left(RoundUpToPages(bytes)) {}
  uint64_t limit, left;
};

// Room for part of a file.
struct Piece {
  uint64_t offset;
  absl::Span<std::byte> into;
};

// By several threads: shared memory may be most of what a job has, and the job waits.
absl::Status Read(int fd, uint64_t file_size, const std::vector<Piece>& pieces) {
  absl::Mutex mutex;
  absl::Status first_error;
  ForEachInParallel(pieces.size(), CopyThreads(), [&](size_t i) {
    const Piece& piece = pieces[i];
    const size_t wanted =
        static_cast<size_t>(std::min<uint64_t>(piece.into.size(), file_size - piece.offset));
    const absl::Status read = ReadAtOrZero(fd, piece.offset, piece.into.first(wanted));
    std::memset(piece.into.data() + wanted, 0, piece.into.size() - wanted);
    if (read.ok()) return;
    absl::MutexLock lock(&mutex);
    first_error.Update(read);
  });
  return first_error;
}

// Copies files into the arena, one after the other, each from a page's beginning.
class ContentCopier {
 public:
  ContentCopier(const WrittenFilesOptions& options, StagingArena* arena)
      : options_(options), arena_(arena), readable_(options.readable), leases_(options.leases) {}

  // The message of an error says why there is no content.
  absl::StatusOr<std::vector<CopiedRange>> Copy(const Found& found, Room* room) {
    const v1::WrittenFile& file = found.file;
    RK_ASSIGN_OR_RETURN(const UniqueFd place, PlaceOf(file.path(), options_));
    struct stat info;
    if (::fstat(place.get(), &info) != 0 || info.st_dev != file.device() || info.st_ino != file.inode()) {
      return absl::AbortedError("another file has taken its place");
    }
    if (!readable_.Has(info)) {
      return absl::PermissionDeniedError(
          absl::StrCat("the job can't read it, and it belongs to uid ", file.uid()));
    }
    if (std::min(file.size(), found.allocated_bytes) > room->left) return TooLarge(file, *room);
    if (leases_->Has(file.device(), file.inode()))
      return absl::UnavailableError("somebody has a lease of it");
    RK_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFileAt(place.get()));
    std::vector<Piece> pieces;
    for (uint64_t at = 0; at < file.size();) {
      const off_t data = ::lseek(fd.get(), static_cast<off_t>(at), SEEK_DATA);
      if (data < 0 && errno == ENXIO) break;  // a hole to its end
      uint64_t begin = at, end = file.size();
      if (data >= 0) {  // where the file system can't tell, all is data
        begin = std::max(at, static_cast<uint64_t>(data) / store::kPageSize * store::kPageSize);
        const off_t hole = ::lseek(fd.get(), data, SEEK_HOLE);
        if (hole >= 0) end = std::min(end, static_cast<uint64_t>(hole));
      }
      end = RoundUpToPages(end);
      if (begin >= end) break;
      RK_RETURN_IF_ERROR(MakeRoomFor(file, begin, end, room, &pieces));
      at = end;
    }
    // That an object is there tells that the content is known.
    if (pieces.empty() && file.size() > 0) {
      RK_RETURN_IF_ERROR(MakeRoomFor(file, 0, store::kPageSize, room, &pieces));
    }
    RK_RETURN_IF_ERROR(Read(fd.get(), file.size(), pieces));
    std::vector<CopiedRange> ranges;
    for (const Piece& piece : pieces) ranges.push_back({piece.offset, piece.into});
    return ranges;
  }

 private:
  static absl::Status TooLarge(const v1::WrittenFile& file, const Room& room) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "it has ", FormatBytes(file.size()), ", and contents of files may take ", FormatBytes(room.limit),
        " in all; leave out what need not be put back with --ignore-path"));
  }

  absl::Status MakeRoomFor(const v1::WrittenFile& file, uint64_t begin, uint64_t end, Room* room,
                           std::vector<Piece>* pieces) {
    if (end - begin > room->left) return TooLarge(file, *room);
    room->left -= end - begin;
    while (begin < end) {
      if (block_.empty()) {
        RK_ASSIGN_OR_RETURN(block_, arena_->NextBlock());
      }
      const absl::Span<std::byte> part = block_.subspan(0, end - begin);
      block_.remove_prefix(part.size());
      pieces->push_back({begin, part});
      begin += part.size();
    }
    return absl::OkStatus();
  }

  const WrittenFilesOptions& options_;
  StagingArena* const arena_;
  ReadableFiles readable_;
  absl::Span<std::byte> block_;
  std::shared_ptr<Leases> leases_;
};

constexpr uint64_t kNoLimit = uint64_t{1} << 62;

// Does a path belong to a database with files beside it?
class Databases {
 public:
  explicit Databases(std::set<std::string> paths) : paths_(std::move(paths)) {
    for (const std::string& path : paths_) {
      const std::string database(DatabaseBeside(path));
      if (!database.empty() && paths_.contains(database)) databases_.insert(database);
    }
  }
  bool IsOne(const std::string& path) const { return databases_.contains(path); }
  bool IsBesideOne(const std::string& path) const {
    return databases_.contains(std::string(DatabaseBeside(path)));
  }

 private:
  std::set<std::string> paths_, databases_;
};

std::set<std::string> PathsOf(const std::vector<Found>& files) {
  std::set<std::string> paths;
  for (const Found& found : files) {
    if (!found.file.tracked()) paths.insert(found.file.path());
  }
  return paths;
}

// Takes contents: shared memory and those that were asked for first; then what lies beside databases, which
// is of use also without theirs, where that has not changed.
class ContentTaker {
 public:
  ContentTaker(const WrittenFilesOptions& options, StagingArena* arena, WrittenFiles* written)
      : options_(options),
        written_(*written),
        copier_(options, arena),
        small_(options.small_limit_bytes),
        of_databases_(options.databases_limit_bytes),
        large_(options.contents_limit_bytes),
        shared_(kNoLimit) {}

  void Take(const std::vector<Found>& files) {
    const Databases databases(PathsOf(files));
    const auto why = [&](const v1::WrittenFile& file) {
      if (file.shared_memory() || (options_.contents && file.in_place())) return Why::kAsked;
      if (databases.IsBesideOne(file.path())) return Why::kBesideDatabase;
      return databases.IsOne(file.path()) ? Why::kDatabase : Why::kUnasked;
    };
    for (const Why round : {Why::kAsked, Why::kBesideDatabase, Why::kDatabase, Why::kUnasked}) {
      for (size_t i = 0; i < files.size(); ++i) {
        if (why(files[i].file) == round) TakeOne(files[i], round, i);
      }
    }
  }

 private:
  enum class Why { kAsked, kBesideDatabase, kDatabase, kUnasked };

  void TakeOne(const Found& found, Why why, size_t index) {
    const v1::WrittenFile& file = found.file;
    if (file.tracked()) return;
    // What has no name is meant by no path.
    if (!file.nameless() && IsBelowAny(file.path(), options_.ignore_paths)) return;
    const bool asked = why == Why::kAsked;
    const bool of_database =
        !asked && why != Why::kUnasked && RoundUpToPages(file.size()) <= of_databases_.left;
    const bool small = !asked && !of_database && file.size() <= options_.small_bytes &&
                       RoundUpToPages(file.size()) <= small_.left;
    if (!asked && !of_database && !small && !file.is_new() && !found.begun_lately) return;
    Room* const room = file.shared_memory() ? &shared_
                       : of_database        ? &of_databases_
                       : small              ? &small_
                                            : &large_;
    auto ranges = copier_.Copy(found, room);
    if (ranges.ok()) {
      written_.contents[index] = *std::move(ranges);
      return;
    }
    // What nobody asked for is missed only where a checkpoint may be lost with it.
    if (small || of_database || (!asked && absl::IsPermissionDenied(ranges.status()))) return;
    written_.warnings.push_back(
        absl::StrCat("the content of ", file.path(), " is not in the image: ", ranges.status().message()));
  }

  const WrittenFilesOptions& options_;
  WrittenFiles& written_;
  ContentCopier copier_;
  Room small_, of_databases_, large_, shared_;
};

}  // namespace

bool SeeOurFiles(const std::vector<pid_t>& pids) {
  const std::string ours = ReadLink("/proc/self/ns/mnt").value_or("");
  return std::all_of(pids.begin(), pids.end(), [&](pid_t pid) {
    const std::string its = ReadLink(absl::StrCat("/proc/", pid, "/ns/mnt")).value_or("");
    return its.empty() || its == ours;  // empty: it has ended
  });
}

absl::StatusOr<WrittenFiles> LookAtWrittenFiles(const std::map<std::string, std::string>& criu_files,
                                                WrittenFilesOptions options, StagingArena* arena) {
  if (!options.leases) options.leases = Leases::BeginReading();
  WrittenFiles written;
  RK_ASSIGN_OR_RETURN(std::vector<Found> all, FindWritten(criu_files, options, &written.warnings));
  ContentTaker(options, arena, &written).Take(all);
  for (Found& found : all) written.files.push_back(std::move(found.file));
  return written;
}

absl::Status AddToImage(const WrittenFiles& written, store::ImageWriter& writer, v1::JobManifest* manifest) {
  for (size_t i = 0; i < written.files.size(); ++i) {
    v1::WrittenFile* file = manifest->add_written_files();
    *file = written.files[i];
    auto content = written.contents.find(i);
    // Of an empty one the size says it all.
    if (content == written.contents.end() || content->second.empty()) continue;
    file->set_content_object(absl::StrCat(v1::kFileContentPrefix, i));
    for (const CopiedRange& range : content->second) {
      RK_RETURN_IF_ERROR(writer.AddPages(file->content_object(), range.address, range.bytes));
    }
  }
  return absl::OkStatus();
}

namespace {

// A file on disk that has a name, and one of the descriptors by which a process may write it.
struct OpenForWriting {
  pid_t pid;
  std::string number, link;  // its descriptor, and /proc/PID/fd/NUMBER
  bool is_read;              // it may be read by that, too
  std::string path;
  struct stat info;
};

// Files come once for each descriptor. Until `visit` returns false.
void VisitOpenForWriting(const std::vector<pid_t>& pids,
                         absl::FunctionRef<bool(const OpenForWriting&)> visit) {
  for (pid_t pid : pids) {
    const std::string folder = absl::StrCat("/proc/", pid, "/fd/");
    for (const std::string& name : ListDirectory(folder).value_or(std::vector<std::string>())) {
      OpenForWriting open{pid, name, folder + name, false, "", {}};
      struct stat link_info;
      if (::lstat(open.link.c_str(), &link_info) != 0 || (link_info.st_mode & S_IWUSR) == 0) continue;
      open.is_read = (link_info.st_mode & S_IRUSR) != 0;
      if (::stat(open.link.c_str(), &open.info) != 0 || !S_ISREG(open.info.st_mode) ||
          open.info.st_nlink == 0)
        continue;
      open.path = ReadLink(open.link).value_or("");
      if (IsOnDisk(open.path) && !visit(open)) return;
    }
  }
}

}  // namespace

void ReadEndingsAhead(const std::vector<pid_t>& pids, WrittenFilesOptions options) {
  if (!options.leases) options.leases = Leases::BeginReading();
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> before;  // their sizes in the image before
  if (options.before) {
    for (const v1::WrittenFile& file : *options.before)
      before[{file.device(), file.inode()}] = file.ending() == 0 ? 0 : file.size();
  }
  std::set<std::pair<uint64_t, uint64_t>> seen;
  std::vector<v1::WrittenFile> files;
  VisitOpenForWriting(pids, [&](const OpenForWriting& open) {
    // That is written in place, as it seems, of which no ending is read.
    if (open.is_read && !OpenForAppending(open.pid, open.number)) return true;
    if (open.info.st_size == 0 || !seen.insert({open.info.st_dev, open.info.st_ino}).second) return true;
    v1::WrittenFile& file = files.emplace_back();
    file.set_path(open.path);
    file.set_device(open.info.st_dev);
    file.set_inode(open.info.st_ino);
    file.set_size(static_cast<uint64_t>(open.info.st_size));
    return files.size() < kMostEndings;
  });
  // By several threads: each waits for a disk or a server.
  std::vector<UniqueFd> open(files.size());
  for (size_t i = 0; i < files.size(); ++i) open[i] = OpenWritten(files[i], options);
  ForEachInParallel(files.size(), CopyThreads(), [&](size_t i) {
    if (!open[i].valid()) return;
    (void)FileEnding(open[i].get(), files[i].size());
    const auto was = before.find({files[i].device(), files[i].inode()});
    if (was != before.end() && was->second > 0 && was->second < files[i].size())
      (void)FileEnding(open[i].get(), was->second);
  });
}

uint64_t EstimateContents(const std::vector<pid_t>& pids, const WrittenFilesOptions& options) {
  std::set<std::pair<dev_t, ino_t>> seen;
  uint64_t small = 0, of_databases = 0, large = 0, shared = 0;
  std::set<std::string> paths;
  struct Large {
    std::string path;
    uint64_t bytes;
    bool taken;  // also where it is of no database
  };
  std::vector<Large> not_small;
  const EarlierFiles earlier(options);
  VisitOpenForWriting(pids, [&](const OpenForWriting& open) {
    const struct stat& info = open.info;
    if (IsBelowAny(open.path, options.ignore_paths) || !seen.insert({info.st_dev, info.st_ino}).second)
      return true;
    const uint64_t size = static_cast<uint64_t>(info.st_size);
    const uint64_t bytes = std::min(size, static_cast<uint64_t>(info.st_blocks) * 512);
    paths.insert(open.path);
    if (IsInSharedMemory(open.path)) {
      shared += bytes;
    } else if (size <= options.small_bytes) {
      small += bytes;
    } else {  // whether it is written in place, CRIU's images will tell
      v1::WrittenFile file;
      file.set_device(info.st_dev);
      file.set_inode(info.st_ino);
      file.set_size(size);
      file.set_born_ns(BornUnixNanos(AT_FDCWD, open.link, 0));
      const bool taken = options.contents || IsNew(file.born_ns(), options.new_until_age) ||
                         (!open.is_read && !OpenForAppending(open.pid, open.number) &&
                          earlier.BegunSince(file, [] { return UniqueFd(); }));
      not_small.push_back({open.path, bytes, taken});
    }
    return true;
  });
  const Databases databases(std::move(paths));
  for (const Large& file : not_small) {
    if (file.taken) {
      large += file.bytes;
    } else if (databases.IsOne(file.path) || databases.IsBesideOne(file.path)) {
      of_databases += file.bytes;
    }
  }
  return shared + std::min(small, options.small_limit_bytes) +
         std::min(of_databases, options.databases_limit_bytes) +
         std::min(large, options.contents_limit_bytes);
}

}  // namespace rekindle::ckpt
