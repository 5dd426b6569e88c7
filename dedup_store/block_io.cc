#include "dedup_store/block_io.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/guarded_mapping.h"
#include "base/human_units.h"
#include "base/lock_error.h"
#include "base/log.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "dedup_store/coding.h"
#include "dedup_store/direct_buffer.h"
#include "dedup_store/small_file.h"
#include "dedup_store/store_folders.h"
#include "dedup_store/write_queue.h"

namespace rekindle::store {

namespace {

constexpr uint64_t kRoomForInodes = 1 << 20;
// For a lock that somebody has. Nobody can tell of a wait within the kernel, nor end it.
constexpr absl::Duration kFirstPause = absl::Milliseconds(1), kLongestPause = absl::Milliseconds(20),
                         kSilentWait = absl::Seconds(10);
constexpr uint32_t kZfsMagic = 0x2fc12fc1;
// See BlockFile::KeepsAllocated: ZFS, bcachefs, btrfs, NFS, FUSE, CIFS and SMB.
constexpr uint32_t kKeepNothing[] = {kZfsMagic,        0xca451a4e,       BTRFS_SUPER_MAGIC, NFS_SUPER_MAGIC,
                                     FUSE_SUPER_MAGIC, CIFS_SUPER_MAGIC, SMB2_SUPER_MAGIC};
constexpr absl::string_view kRefusedByDisk = "rekindle/refused-by-disk";

}  // namespace

absl::Status FileError(int error_number, absl::string_view what, const std::string& path, int fd) {
  if (error_number == EROFS) {
    const absl::Status refused = ErrnoStatus(error_number, absl::StrCat(what, " ", path));
    return WithMessage(refused, absl::StrCat(refused.message(), ": ", kIsReadOnly));
  }
  if (error_number != ENOSPC && error_number != EDQUOT) {
    return ErrnoStatus(error_number, absl::StrCat(what, " ", path));
  }
  std::string cause = error_number == EDQUOT ? "the disk quota is used up" : "the file system is full";
  struct statvfs fs;
  // What could not be created is not there; its folder is.
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  if (fd >= 0 ? fstatvfs(fd, &fs) == 0 : statvfs(folder.c_str(), &fs) == 0) {
    const uint64_t free_bytes = uint64_t{fs.f_bavail} * fs.f_frsize;
    // Where inodes are made as they are needed, their number is none, or what the free space could hold.
    const bool no_inodes = fs.f_files > 0 && fs.f_favail == 0 && free_bytes >= kRoomForInodes;
    if (error_number == ENOSPC && no_inodes) {
      // Each image gives two of them back at the most, and shares packs with others.
      return absl::ResourceExhaustedError(absl::StrCat(
          what, " ", path, ": the file system has no inode left for another file (", FormatBytes(free_bytes),
          " free; `df -i`). Remove files that nobody needs there, or have it take more of them (tmpfs: "
          "mount -o remount,nr_inodes=N; ext4: one made anew, mkfs -N); removing images (`rekindle rm`, "
          "then `rekindle gc`) gives back a few"));
    }
    absl::StrAppend(&cause, " (", FormatBytes(free_bytes), " free)");
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      what, " ", path, ": ", cause,
      ". Free some space, or remove images (`rekindle rm`) and have an administrator run `rekindle gc`."));
}

absl::Status ReadError(int error_number, const std::string& path, uint64_t offset, uint64_t bytes) {
  const auto lost = [&](absl::string_view who_reports_what) {
    absl::Status status =
        absl::DataLossError(absl::StrCat("reading ", path, " at ", offset, ": ", who_reports_what));
    Encoder place;
    place.U64(offset);
    place.U64(bytes);
    place.Raw(path.data(), path.size());
    status.SetPayload(kRefusedByDisk, absl::Cord(place.Take()));
    return status;
  };
  // A buffered read gets EIO for whatever the disk says; one past the page cache gets what the kernel's block
  // layer makes of it.
  switch (error_number) {
    case EIO:
      return lost("the disk reports an input/output error");
    case ENODATA:
      return lost("the disk reports that it can't read this place (a medium error)");
    case EILSEQ:
      return lost("the disk reports that its own check of this place fails (a protection error)");
    case EREMOTEIO:
      return lost("the disk reports an error of its own (a target error)");
    case EUCLEAN:
    case EBADMSG:
      return lost("the file system reports that its own data is damaged");
    default:
      return FileError(error_number, "reading", path, -1);
  }
}

bool IsRefusedByDisk(const absl::Status& status) { return status.GetPayload(kRefusedByDisk).has_value(); }

RefusedPlace PlaceOf(const absl::Status& status) {
  const std::string place(status.GetPayload(kRefusedByDisk).value_or(absl::Cord()));
  Decoder in(place);
  const uint64_t offset = in.U64(), bytes = in.U64();
  return {place.substr(std::min<size_t>(2 * sizeof offset, place.size())), offset, bytes};
}

namespace {

class RealMapping : public FileMapping {
 public:
  explicit RealMapping(GuardedMapping mapping) : mapping_(std::move(mapping)) {}
  absl::Span<const std::byte> bytes() const override { return mapping_.bytes(); }
  bool lost() const override { return mapping_.lost(); }

 private:
  GuardedMapping mapping_;
};

class RealFile : public BlockFile {
 public:
  RealFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  ~RealFile() override {
    if (locked_) flock(fd_.get(), LOCK_UN);
  }
  const std::string& path() const override { return path_; }

  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> out) const override {
    size_t done = 0;
    while (done < out.size()) {
      ssize_t n = pread(fd_.get(), out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ReadError(errno, path_, offset + done, out.size() - done);
      if (n == 0) return absl::DataLossError(absl::StrCat(path_, " ends at ", offset + done, ", too early"));
      done += static_cast<size_t>(n);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Size() const override {
    struct stat st;
    if (fstat(fd_.get(), &st) != 0) return FileError(errno, "looking at", path_, fd_.get());
    return static_cast<uint64_t>(st.st_size);
  }
  absl::StatusOr<uint64_t> AllocatedBytes() const override {
    struct stat st;
    if (fstat(fd_.get(), &st) != 0) return FileError(errno, "looking at", path_, fd_.get());
    return static_cast<uint64_t>(st.st_blocks) * 512;
  }
  absl::StatusOr<bool> IsLinked() const override {
    struct stat opened, named;
    if (fstat(fd_.get(), &opened) != 0) {
      if (errno == ESTALE) return false;  // another node's NFS client removed it
      return FileError(errno, "looking at", path_, fd_.get());
    }
    if (opened.st_nlink == 0) return false;
    // A client of NFS gives a file another name that is removed while it is open.
    if (stat(path_.c_str(), &named) != 0) {
      if (errno == ENOENT || errno == ESTALE) return false;
      return FileError(errno, "looking at", path_, fd_.get());
    }
    return named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
  }

  absl::Status Revalidate() const override {
    struct statx now;
    constexpr int kFlags = AT_EMPTY_PATH | AT_STATX_FORCE_SYNC;
    if (statx(fd_.get(), "", kFlags, STATX_BASIC_STATS, &now) == 0) return absl::OkStatus();
    if (errno == ESTALE) return absl::OkStatus();  // another node removed it: IsLinked tells
    if (errno == ENOSYS || errno == EPERM) {
      // A sandbox may not know that question. Opening a file asks it too.
      (void)OpenFile(absl::StrCat("/proc/self/fd/", fd_.get()), O_RDONLY);
      return absl::OkStatus();
    }
    return FileError(errno, "looking at", path_, fd_.get());
  }

  absl::StatusOr<std::unique_ptr<FileMapping>> Map(uint64_t offset, uint64_t bytes) const override {
    RK_ASSIGN_OR_RETURN(GuardedMapping mapping, GuardedMapping::Map(fd_.get(), offset, bytes, path_));
    return std::make_unique<RealMapping>(std::move(mapping));
  }

  void WillNeed(uint64_t offset, uint64_t bytes) const override {
    (void)posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes),
                        POSIX_FADV_WILLNEED);
  }

  absl::StatusOr<bool> Lock(LockMode mode, bool wait) override {
    const int operation = (mode == LockMode::kShared ? LOCK_SH : LOCK_EX) | LOCK_NB;
    const Deadline silence(kSilentWait);
    bool told = false;
    for (absl::Duration pause = kFirstPause; flock(fd_.get(), operation) != 0;) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) return LockError(errno, path_);
      if (!wait) return false;
      if (!told && silence.passed()) {
        Log(LogLevel::kWarning,
            absl::StrCat("waits for a lock on ", path_,
                         ", which another process or another node holds: one that is stopped, "
                         "or a node that is gone, keeps it until it ends or its file server "
                         "forgets it"));
        told = true;
      }
      absl::SleepFor(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
    locked_ = true;
    return true;
  }

  absl::StatusOr<std::unique_ptr<WriteQueue>> NewWriteQueue(size_t buffer_bytes, size_t buffers) override {
    return MakeWriteQueue(fd_.get(), path_, buffer_bytes, buffers);
  }

  absl::Status WriteAt(uint64_t offset, absl::Span<const std::byte> bytes) override {
    return WriteAll(fd_.get(), path_, bytes.data(), bytes.size(), offset);
  }
  absl::StatusOr<uint64_t> FreeBytes() const override {
    struct statvfs fs;
    if (fstatvfs(fd_.get(), &fs) != 0) return FileError(errno, "looking at the room for", path_, fd_.get());
    return uint64_t{fs.f_bavail} * fs.f_frsize;
  }
  absl::Status Allocate(uint64_t offset, uint64_t bytes) override {
    while (fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes)) !=
           0) {
      if (errno == EINTR) continue;
      return FileError(errno, "allocating space for", path_, fd_.get());
    }
    return absl::OkStatus();
  }
  bool KeepsAllocated() const override {
    struct statfs fs;
    if (fstatfs(fd_.get(), &fs) != 0) return false;
    const auto type = static_cast<uint32_t>(fs.f_type);
    return std::find(std::begin(kKeepNothing), std::end(kKeepNothing), type) == std::end(kKeepNothing);
  }
  bool GivesBackLate() const override {
    struct statfs fs;
    return fstatfs(fd_.get(), &fs) == 0 && static_cast<uint32_t>(fs.f_type) == kZfsMagic;
  }
  absl::Status Truncate(uint64_t size) override {
    if (ftruncate(fd_.get(), static_cast<off_t>(size)) != 0)
      return FileError(errno, "truncating", path_, fd_.get());
    return absl::OkStatus();
  }
  absl::Status PunchHole(uint64_t offset, uint64_t bytes) override {
    while (fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                     static_cast<off_t>(bytes)) != 0) {
      if (errno == EINTR) continue;
      return FileError(errno, "giving back space of", path_, fd_.get());
    }
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    if (fdatasync(fd_.get()) != 0) return FileError(errno, "syncing", path_, fd_.get());
    return absl::OkStatus();
  }

 private:
  UniqueFd fd_;
  bool locked_ = false;  // to be given up as a HeldLock is
  std::string path_;
};

// Opened with O_DIRECT.
class UncachedFile : public RealFile {
 public:
  using RealFile::RealFile;

  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> out) const override {
    auto aligned = [](uint64_t number) { return number == DirectFloor(number); };
    if (aligned(offset) && aligned(out.size()) && aligned(reinterpret_cast<uintptr_t>(out.data()))) {
      return RealFile::ReadAt(offset, out);
    }
    const uint64_t begin = DirectFloor(offset), end = DirectCeiling(offset + out.size());
    const size_t most = std::min<uint64_t>(end - begin, kMostAtATime);
    const DirectBuffer buffer = MakeDirectBuffer(most);
    for (uint64_t at = begin; at < end;) {
      const size_t bytes = std::min<uint64_t>(most, end - at);
      RK_RETURN_IF_ERROR(RealFile::ReadAt(at, {buffer.get(), bytes}));
      const uint64_t from = std::max(at, offset), to = std::min(at + bytes, offset + out.size());
      memcpy(out.data() + (from - offset), buffer.get() + (from - at), to - from);
      at += bytes;
    }
    return absl::OkStatus();
  }

 private:
  static constexpr uint64_t kMostAtATime = uint64_t{1} << 20;
};

// btrfs writes a block that has data elsewhere, which takes room that a full disk does not have: what was
// allocated behind the end of a file would be no reserve for the bytes in its last block. Other file systems
// refuse the flag and need none. Only an empty file takes it.
void WriteInPlace(int fd) {
  int flags = 0;
  if (ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0) return;
  flags |= FS_NOCOW_FL;
  (void)ioctl(fd, FS_IOC_SETFLAGS, &flags);
}

// Whoever may write the store could have put something else there, by which all would wait, or be led away.
absl::StatusOr<UniqueFd> OpenRegular(const std::string& path, int flags) {
  const int opened = OpenOwnFile(path, flags);
  const int error = opened < 0 ? errno : 0;
  UniqueFd fd(opened);
  // No damage that a repair may take for a loss: what is meant may lie elsewhere.
  if (const absl::Status regular = CheckIsRegular(error, fd.get(), path); !regular.ok())
    return absl::UnavailableError(regular.message());
  if (!fd.valid()) return FileError(error, "opening", path, -1);
  return fd;
}

class RealIo : public BlockIo {
 public:
  absl::StatusOr<std::unique_ptr<BlockFile>> Create(const std::string& path) override {
    constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
    int fd = ::open(path.c_str(), kFlags | O_DIRECT, 0600);
    if (fd < 0 && errno == EINVAL) {
      // Some file systems make the file before they refuse direct I/O.
      (void)::unlink(path.c_str());
      fd = ::open(path.c_str(), kFlags, 0600);
    }
    if (fd < 0) return FileError(errno, "creating", path, -1);
    return std::make_unique<RealFile>(UniqueFd(fd), path);
  }
  absl::StatusOr<std::unique_ptr<BlockFile>> CreateBuffered(const std::string& path) override {
    int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return FileError(errno, "creating", path, -1);
    WriteInPlace(fd);
    return std::make_unique<RealFile>(UniqueFd(fd), path);
  }
  absl::StatusOr<std::unique_ptr<BlockFile>> Open(const std::string& path, bool writable) override {
    RK_ASSIGN_OR_RETURN(UniqueFd fd, OpenRegular(path, writable ? O_RDWR : O_RDONLY));
    return std::make_unique<RealFile>(std::move(fd), path);
  }
  absl::StatusOr<std::unique_ptr<BlockFile>> OpenUncached(const std::string& path) override {
    absl::StatusOr<UniqueFd> fd = OpenRegular(path, O_RDONLY | O_DIRECT);
    if (absl::IsInvalidArgument(fd.status())) return Open(path, false);  // the file system has no direct I/O
    RK_RETURN_IF_ERROR(fd.status());
    return std::make_unique<UncachedFile>(*std::move(fd), path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return FileError(errno, "renaming", from, -1);
    return absl::OkStatus();
  }
  absl::Status Unlink(const std::string& path) override {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return FileError(errno, "removing", path, -1);
    return absl::OkStatus();
  }
  absl::Status SyncDirectory(const std::string& path) override {
    RK_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDONLY | O_DIRECTORY));
    if (fsync(fd.get()) != 0) return FileError(errno, "syncing", path, fd.get());
    return absl::OkStatus();
  }
  absl::Status BeforeCatalogCommit(absl::string_view) override { return absl::OkStatus(); }
};

}  // namespace

BlockIo* RealBlockIo() {
  static RealIo* const io = new RealIo;
  return io;
}

}  // namespace rekindle::store
