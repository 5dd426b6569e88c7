#include "bench/freeze_copies.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/parallel.h"
#include "base/status.h"
#include "bench/page_sizes.h"
#include "ckpt/pagemap_scan.h"

namespace rekindle::bench {
namespace {

constexpr uint64_t kIsWritten = 1 << 1;
constexpr uint64_t kProtectAgain = 1 << 0, kOnlyIfTracked = 1 << 1;

// Calls work(thread, i) for each i below `count`, until one fails on that thread.
absl::Status ForEach(uint64_t count, size_t threads,
                     const std::function<absl::Status(size_t thread, uint64_t i)>& work) {
  std::atomic<uint64_t> next{0};
  std::vector<absl::Status> ended(threads);
  InParallel(threads, [&](size_t thread) {
    for (uint64_t i; ended[thread].ok() && (i = next.fetch_add(1)) < count;) ended[thread] = work(thread, i);
  });
  for (const absl::Status& status : ended) RK_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

using Buffer = std::unique_ptr<std::byte, decltype(&std::free)>;

std::vector<Buffer> Buffers(const CopyPlan& plan) {
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < plan.threads; ++i) {
    buffers.emplace_back(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, plan.slice_bytes)),
                         &std::free);
    std::memset(buffers.back().get(), 1, plan.slice_bytes);
  }
  return buffers;
}

void StorePastCache(std::byte* to, const std::byte* from, size_t bytes) {
#if defined(__x86_64__)
  auto* out = reinterpret_cast<__m128i*>(to);
  const auto* in = reinterpret_cast<const __m128i*>(from);
  for (size_t i = 0; i < bytes / sizeof *out; i += 4) {
    const __m128i a = _mm_load_si128(in + i), b = _mm_load_si128(in + i + 1), c = _mm_load_si128(in + i + 2),
                  d = _mm_load_si128(in + i + 3);
    _mm_stream_si128(out + i, a);
    _mm_stream_si128(out + i + 1, b);
    _mm_stream_si128(out + i + 2, c);
    _mm_stream_si128(out + i + 3, d);
  }
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

// Reads slice by slice into a buffer and calls page(number, its bytes) for each page; counts those for which
// it returns true.
absl::StatusOr<uint64_t> ForEachPage(
    const Source& from, const CopyPlan& plan,
    const std::function<bool(uint64_t number, const std::byte* bytes)>& page) {
  const std::vector<Buffer> buffers = Buffers(plan);
  std::atomic<uint64_t> taken{0};
  auto look = [&](size_t thread, uint64_t slice) {
    std::byte* buffer = buffers[thread].get();
    RK_RETURN_IF_ERROR(from.Read(slice * plan.slice_bytes, {buffer, plan.slice_bytes}));
    uint64_t here = 0;
    for (uint64_t at = 0; at < plan.slice_bytes; at += kPageBytes) {
      here += page((slice * plan.slice_bytes + at) / kPageBytes, buffer + at);
    }
    taken += here;
    return absl::OkStatus();
  };
  RK_RETURN_IF_ERROR(ForEach(from.bytes() / plan.slice_bytes, plan.threads, look));
  return taken.load();
}

}  // namespace

absl::StatusOr<Room> Room::Make(uint64_t bytes) {
  const uint64_t mapped = bytes + kHugePageBytes;
  void* address = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("mapping ", mapped, " bytes"));
  const auto start = reinterpret_cast<uintptr_t>(address);
  const uintptr_t aligned = (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  if (aligned > start) ::munmap(address, aligned - start);
  ::munmap(reinterpret_cast<void*>(aligned + bytes), mapped - (aligned - start) - bytes);
  Room room(reinterpret_cast<std::byte*>(aligned), bytes);
  for (int advice : {MADV_HUGEPAGE, MADV_DONTFORK, MADV_POPULATE_WRITE}) {
    if (::madvise(room.data_, bytes, advice) != 0) return ErrnoStatus(errno, "touching memory to copy into");
  }
  return room;
}

Room::Room(Room&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

Room::~Room() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

absl::StatusOr<Source> Source::Open(By by, pid_t pid, uint64_t address, uint64_t bytes) {
  Source source(by, pid, address, bytes);
  if (by == By::kProcMem) {
    RK_ASSIGN_OR_RETURN(source.file_, OpenFile(absl::StrCat("/proc/", pid, "/mem"), O_RDONLY));
  }
  return source;
}

absl::Status Source::Read(uint64_t offset, absl::Span<std::byte> to) const {
  if (by_ == By::kOwnMemory) {
    std::memcpy(to.data(), reinterpret_cast<const std::byte*>(address_ + offset), to.size());
    return absl::OkStatus();
  }
  while (!to.empty()) {
    iovec local{to.data(), to.size()};
    iovec remote{reinterpret_cast<void*>(address_ + offset), to.size()};
    const ssize_t n = by_ == By::kProcMem
                          ? ::pread(file_.get(), to.data(), to.size(), static_cast<off_t>(address_ + offset))
                          : ::process_vm_readv(pid_, &local, 1, &remote, 1, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return ErrnoStatus(n < 0 ? errno : EFAULT, absl::StrCat("reading the memory of process ", pid_));
    to.remove_prefix(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

absl::Status CopyAll(const Source& from, const CopyPlan& plan, const Room& to) {
  std::vector<Buffer> buffers;
  if (plan.non_temporal) buffers = Buffers(plan);
  return ForEach(from.bytes() / plan.slice_bytes, plan.threads, [&](size_t thread, uint64_t slice) {
    const uint64_t offset = slice * plan.slice_bytes;
    if (!plan.non_temporal) return from.Read(offset, to.Part(offset, plan.slice_bytes));
    std::byte* buffer = buffers[thread].get();
    RK_RETURN_IF_ERROR(from.Read(offset, {buffer, plan.slice_bytes}));
    StorePastCache(to.data() + offset, buffer, plan.slice_bytes);
    return absl::OkStatus();
  });
}

absl::StatusOr<uint64_t> CopyDifferent(const Source& from, const CopyPlan& plan, const Room& copy) {
  return ForEachPage(from, plan, [&copy](uint64_t number, const std::byte* bytes) {
    std::byte* mine = copy.data() + number * kPageBytes;
    if (std::memcmp(mine, bytes, kPageBytes) == 0) return false;
    std::memcpy(mine, bytes, kPageBytes);
    return true;
  });
}

absl::StatusOr<uint64_t> FingerprintedCopy::Update(const Source& from, const CopyPlan& plan,
                                                   const Room& copy) {
  const bool knows = !known_.empty();
  known_.resize(from.bytes() / kPageBytes);
  return ForEachPage(from, plan, [this, knows, &copy](uint64_t number, const std::byte* bytes) {
    const uint64_t fingerprint = fingerprinter_.OfPage(bytes);
    if (knows && known_[number] == fingerprint) return false;
    known_[number] = fingerprint;
    std::memcpy(copy.data() + number * kPageBytes, bytes, kPageBytes);
    return true;
  });
}

absl::StatusOr<std::vector<Range>> TakeWritten(const Source& of) {
  RK_ASSIGN_OR_RETURN(UniqueFd pagemap, OpenFile(absl::StrCat("/proc/", of.pid(), "/pagemap"), O_RDONLY));
  std::vector<Range> written;
  std::vector<PageRegion> regions(4096);
  ScanArguments scan{};
  scan.size = sizeof scan;
  scan.flags = kProtectAgain | kOnlyIfTracked;
  scan.vec = reinterpret_cast<uintptr_t>(regions.data());
  scan.vec_len = regions.size();
  scan.category_mask = scan.return_mask = kIsWritten;
  scan.end = of.address() + of.bytes();
  for (scan.start = of.address(); scan.start < scan.end; scan.start = scan.walk_end) {
    const int n = ::ioctl(pagemap.get(), PAGEMAP_SCAN_REQUEST, &scan);
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("asking for the written pages of process ", of.pid()));
    for (int i = 0; i < n; ++i) {
      const PageRegion& region = regions[static_cast<size_t>(i)];
      written.push_back({region.start - of.address(), region.end - region.start});
    }
  }
  return written;
}

absl::Status CopyRanges(const Source& from, const CopyPlan& plan, absl::Span<const Range> ranges,
                        const Room& to) {
  std::vector<Range> slices;
  for (Range range : ranges) {
    while (range.bytes > 0) {
      const uint64_t n = std::min(range.bytes, plan.slice_bytes);
      slices.push_back({range.offset, n});
      range = {range.offset + n, range.bytes - n};
    }
  }
  return ForEach(slices.size(), plan.threads, [&](size_t, uint64_t i) {
    return from.Read(slices[i].offset, to.Part(slices[i].offset, slices[i].bytes));
  });
}

CopyBeforeWrite::CopyBeforeWrite(const Source& from, int userfaultfd, uint64_t chunk_bytes, const Room& to)
    : from_(from),
      userfaultfd_(userfaultfd),
      chunk_bytes_(chunk_bytes),
      to_(to),
      taken_(from.bytes() / chunk_bytes) {}

absl::Status CopyBeforeWrite::SetProtection(uint64_t offset, uint64_t bytes, bool on) {
  uffdio_writeprotect area{};
  area.range = {from_.address() + offset, bytes};
  area.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0;  // taken away, it wakes who waits
  if (::ioctl(userfaultfd_, UFFDIO_WRITEPROTECT, &area) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("protecting the memory of process ", from_.pid()));
}

absl::Status CopyBeforeWrite::Protect() { return SetProtection(0, from_.bytes(), true); }

absl::Status CopyBeforeWrite::Take(uint64_t chunk) {
  // Who has taken it wakes who waits for it.
  if (taken_[chunk].exchange(true)) return absl::OkStatus();
  const uint64_t offset = chunk * chunk_bytes_;
  RK_RETURN_IF_ERROR(from_.Read(offset, to_.Part(offset, chunk_bytes_)));
  return SetProtection(offset, chunk_bytes_, false);
}

absl::Status CopyBeforeWrite::Serve(int stop) {
  for (;;) {
    pollfd entries[2] = {{stop, POLLIN, 0}, {userfaultfd_, POLLIN, 0}};
    if (::poll(entries, 2, -1) < 0 && errno != EINTR) return ErrnoStatus(errno, "waiting for writers");
    if (entries[0].revents != 0) return absl::OkStatus();
    uffd_msg messages[16];
    const ssize_t n = ::read(userfaultfd_, messages, sizeof messages);
    for (ssize_t i = 0; i < n / static_cast<ssize_t>(sizeof messages[0]); ++i) {
      if (messages[i].event != UFFD_EVENT_PAGEFAULT) continue;
      RK_RETURN_IF_ERROR(Take((messages[i].arg.pagefault.address - from_.address()) / chunk_bytes_));
    }
  }
}

absl::Status CopyBeforeWrite::Copy() {
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  absl::Status served;
  std::thread server([&] { served = Serve(stop.get()); });
  absl::Status copied;
  for (uint64_t chunk = 0; copied.ok() && chunk < taken_.size(); ++chunk) copied = Take(chunk);
  ::eventfd_write(stop.get(), 1);
  server.join();
  const absl::Status released = SetProtection(0, from_.bytes(), false);
  for (const absl::Status& status : {copied, served, released}) RK_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace rekindle::bench
