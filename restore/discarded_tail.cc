#include "restore/discarded_tail.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_beginning.h"
#include "base/positioned_io.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

constexpr size_t kSampleBytes = 4096;
constexpr int kNames = 10000;

bool MayBeInText(unsigned char c) {
  return c >= 0x20 || (c >= '\a' && c <= '\r') || c == 0x1b;  // bell to carriage return, and colours
}

// Nobody gets to see more than he could before.
void GiveTo(int fd, const struct stat& like) {
  mode_t mode = like.st_mode & 0777;
  if (::fchown(fd, like.st_uid, like.st_gid) != 0) mode &= 0700;
  (void)::fchmod(fd, mode);
}

uint64_t EndingAt(int fd, uint64_t end) { return end == 0 ? 0 : FileEnding(fd, end).value_or(0); }

}  // namespace

bool LooksLikeText(int fd, uint64_t begin, uint64_t end) {
  if (begin >= end) return false;
  const uint64_t length = std::min<uint64_t>(kSampleBytes, end - begin);
  for (uint64_t at : {begin, end - length}) {
    unsigned char sample[kSampleBytes];
    const ssize_t n = ::pread(fd, sample, length, static_cast<off_t>(at));
    if (n <= 0 || !std::all_of(sample, sample + n, MayBeInText)) return false;
  }
  return true;
}

std::string TailName(absl::string_view name, absl::Time now) {
  const std::string suffix =
      absl::StrCat(".rekindle-tail-", absl::FormatTime("%Y%m%dT%H%M%SZ", now, absl::UTCTimeZone()));
  // Room for a number as well.
  return absl::StrCat(name.substr(0, NAME_MAX - suffix.size() - 5), suffix);
}

absl::StatusOr<KeptTail> KeepTail(int fd, uint64_t begin, uint64_t end, int folder, const std::string& name,
                                  const std::function<void(const std::function<void()>&)>& with_rights) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, "looking at the file");
  std::string made = name;
  UniqueFd copy;
  int error = EPERM;
  for (int number = 2; number < kNames; ++number) {
    with_rights([&] {
      copy.Reset(::openat(folder, made.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
      error = copy.valid() ? 0 : errno;
      if (copy.valid()) GiveTo(copy.get(), info);
    });
    if (error != EEXIST) break;
    made = absl::StrCat(name, "-", number);
  }
  if (!copy.valid()) return ErrnoStatus(error, absl::StrCat("making ", made));
  const absl::StatusOr<uint64_t> copied = CopyPart(fd, begin, end, copy.get(), "the copy");
  if (!copied.ok()) {
    with_rights([&] { (void)::unlinkat(folder, made.c_str(), 0); });
    return copied.status();
  }
  return KeptTail{made, std::move(copy), *copied, EndingAt(fd, *copied)};
}

absl::Status SyncTail(const KeptTail& tail) {
  return ::fsync(tail.copy.get()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "syncing the copy");
}

absl::StatusOr<bool> AddToTail(int fd, uint64_t end, KeptTail* tail) {
  if (end < tail->end || EndingAt(fd, tail->end) != tail->ending) return false;
  if (end == tail->end) return true;
  RK_ASSIGN_OR_RETURN(tail->end, CopyPart(fd, tail->end, end, tail->copy.get(), "the copy"));
  RK_RETURN_IF_ERROR(SyncTail(*tail));
  tail->ending = EndingAt(fd, tail->end);
  return true;
}

}  // namespace rekindle::restore
