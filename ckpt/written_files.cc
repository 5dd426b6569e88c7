#include "ckpt/written_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/status.h"
#include "criu/image_files.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::ckpt {
namespace {

constexpr mode_t kPermissionBits = 07777;

std::string ReadLink(const std::string& path) {
  char target[256] = {};
  const ssize_t n = ::readlink(path.c_str(), target, sizeof target - 1);
  return n > 0 ? std::string(target, static_cast<size_t>(n)) : "";
}

int64_t Nanos(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

bool IsBelow(absl::string_view path, const std::vector<std::string>& folders) {
  for (absl::string_view folder : folders) {
    while (folder.size() > 1 && absl::ConsumeSuffix(&folder, "/")) {
    }
    absl::string_view rest = path;
    if (absl::ConsumePrefix(&rest, folder) && (rest.empty() || rest[0] == '/' || folder == "/")) return true;
  }
  return false;
}

// Is this a name that a restore may look for? What the kernel makes up is not; /dev has no files but
// /dev/shm.
bool IsOnDisk(absl::string_view path) {
  if (path.empty() || path[0] != '/') return false;
  if (absl::StartsWith(path, "/dev/")) return absl::StartsWith(path, "/dev/shm/");
  return !absl::StartsWith(path, "/proc/") && !absl::StartsWith(path, "/sys/");
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
  bool readable = false;  // by the job, through one of them
  uint64_t allocated_bytes = 0;
};

// Is the descriptor used to write elsewhere than at the file's end? Only O_APPEND rules it out, and nothing
// tells of writes at a given place (pwrite). A descriptor that can't read and stands at the end is that of a
// program that writes one line after the other: almost none goes back from there.
bool WritesInPlace(const criu::RegularFile& file, uint64_t size) {
  return !file.append && (file.readable || file.position != size);
}

// The files by inode: one may have several names, and several descriptors for each.
absl::StatusOr<std::vector<Found>> FindWritten(const std::map<std::string, std::string>& criu_files) {
  auto content = [&](const char* name) {
    auto it = criu_files.find(name);
    return it == criu_files.end() ? absl::string_view() : absl::string_view(it->second);
  };
  std::vector<Found> result;
  if (content("files.img").empty()) return result;
  RK_ASSIGN_OR_RETURN(std::vector<criu::RegularFile> files,
                      criu::ParseRegularFiles(content("files.img"), content("remap-fpath.img")));
  RK_ASSIGN_OR_RETURN(const std::set<uint64_t> mapped, MappedFiles(criu_files));
  std::map<std::pair<uint64_t, uint64_t>, Found> by_inode;
  for (const criu::RegularFile& file : files) {
    const bool is_mapped = mapped.contains(file.id);
    if (file.ghost || (!file.written && !is_mapped) || !IsOnDisk(file.path)) continue;
    struct stat info;
    if (::lstat(file.path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
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
    found.mapped |= is_mapped;
    found.readable |= file.readable;
    found.allocated_bytes = static_cast<uint64_t>(info.st_blocks) * 512;
  }
  for (auto& [inode, found] : by_inode) {
    if (found.mapped) found.file.set_modified_ns(0);
    result.push_back(std::move(found));
  }
  std::sort(result.begin(), result.end(),
            [](const Found& a, const Found& b) { return a.file.path() < b.file.path(); });
  return result;
}

uint64_t RoundUpToPages(uint64_t bytes) {
  return (bytes + store::kPageSize - 1) / store::kPageSize * store::kPageSize;
}

// Copies files into the arena, one after the other, each from a page's beginning.
class ContentCopier {
 public:
  ContentCopier(const WrittenFilesOptions& options, StagingArena* arena)
      : options_(options), arena_(arena), left_(RoundUpToPages(options.contents_limit_bytes)) {}

  // The message of an error says why there is no content.
  absl::StatusOr<std::vector<CopiedRange>> Copy(const Found& found) {
    const v1::WrittenFile& file = found.file;
    if (!options_.owner_sees_all && !found.readable && file.uid() != options_.job_uid) {
      return absl::PermissionDeniedError(
          absl::StrCat("the job can't read it, and it belongs to uid ", file.uid()));
    }
    if (std::min(file.size(), found.allocated_bytes) > left_) return TooLarge(file);
    RK_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(file.path(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
    struct stat info;
    if (::fstat(fd.get(), &info) != 0 || info.st_dev != file.device() || info.st_ino != file.inode()) {
      return absl::AbortedError("another file has taken its place");
    }
    std::vector<CopiedRange> ranges;
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
      RK_RETURN_IF_ERROR(CopyRange(fd.get(), file, begin, end, &ranges));
      at = end;
    }
    // That an object is there tells that the content is known.
    if (ranges.empty() && file.size() > 0) {
      RK_RETURN_IF_ERROR(CopyRange(fd.get(), file, 0, store::kPageSize, &ranges));
    }
    return ranges;
  }

 private:
  absl::Status TooLarge(const v1::WrittenFile& file) const {
    return absl::ResourceExhaustedError(
        absl::StrCat("it has ", FormatBytes(file.size()), ", and contents of files may take ",
                     FormatBytes(options_.contents_limit_bytes),
                     " in all; leave out what need not be put back with --ignore-path"));
  }

  absl::Status CopyRange(int fd, const v1::WrittenFile& file, uint64_t begin, uint64_t end,
                         std::vector<CopiedRange>* ranges) {
    if (end - begin > left_) return TooLarge(file);
    left_ -= end - begin;
    while (begin < end) {
      if (room_.empty()) {
        RK_ASSIGN_OR_RETURN(room_, arena_->NextBlock());
      }
      absl::Span<std::byte> part = room_.subspan(0, end - begin);
      room_.remove_prefix(part.size());
      const size_t wanted = static_cast<size_t>(std::min<uint64_t>(part.size(), file.size() - begin));
      size_t done = 0;
      while (done < wanted) {
        const ssize_t n = ::pread(fd, part.data() + done, wanted - done, static_cast<off_t>(begin + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return ErrnoStatus(errno, "reading it");
        if (n == 0) break;
        done += static_cast<size_t>(n);
      }
      std::memset(part.data() + done, 0, part.size() - done);
      ranges->push_back({begin, part});
      begin += part.size();
    }
    return absl::OkStatus();
  }

  const WrittenFilesOptions& options_;
  StagingArena* const arena_;
  uint64_t left_;
  absl::Span<std::byte> room_;
};

}  // namespace

bool SeeOurFiles(const std::vector<pid_t>& pids) {
  const std::string ours = ReadLink("/proc/self/ns/mnt");
  return std::all_of(pids.begin(), pids.end(), [&](pid_t pid) {
    const std::string its = ReadLink(absl::StrCat("/proc/", pid, "/ns/mnt"));
    return its.empty() || its == ours;  // empty: it has ended
  });
}

absl::StatusOr<WrittenFiles> LookAtWrittenFiles(const std::map<std::string, std::string>& criu_files,
                                                const WrittenFilesOptions& options, StagingArena* arena) {
  RK_ASSIGN_OR_RETURN(std::vector<Found> all, FindWritten(criu_files));
  WrittenFiles written;
  ContentCopier copier(options, arena);
  for (Found& found : all) {
    v1::WrittenFile& file = found.file;
    if (options.contents && file.in_place() && !IsBelow(file.path(), options.ignore_paths)) {
      if (auto ranges = copier.Copy(found); ranges.ok()) {
        written.contents[written.files.size()] = *std::move(ranges);
      } else {
        written.warnings.push_back(absl::StrCat("the content of ", file.path(),
                                                " is not in the image: ", ranges.status().message()));
      }
    }
    written.files.push_back(std::move(file));
  }
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

uint64_t EstimateContents(const std::vector<pid_t>& pids, const WrittenFilesOptions& options) {
  if (!options.contents) return 0;
  std::map<std::pair<dev_t, ino_t>, uint64_t> bytes_of;
  for (pid_t pid : pids) {
    const std::string folder = absl::StrCat("/proc/", pid, "/fd/");
    for (const std::string& name : ListDirectory(folder).value_or(std::vector<std::string>())) {
      const std::string link = folder + name;
      struct stat info, link_info;
      if (::lstat(link.c_str(), &link_info) != 0 || (link_info.st_mode & S_IWUSR) == 0) continue;
      if (::stat(link.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
      bytes_of[{info.st_dev, info.st_ino}] =
          std::min(static_cast<uint64_t>(info.st_size), static_cast<uint64_t>(info.st_blocks) * 512);
    }
  }
  uint64_t sum = 0;
  for (const auto& [inode, bytes] : bytes_of) sum += bytes;
  return std::min(sum, options.contents_limit_bytes);
}

}  // namespace rekindle::ckpt
